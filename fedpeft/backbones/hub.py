"""Downloads from the Hugging Face hub that fail fast without a network."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fedpeft.errors import UserError


def hub_reachable(timeout: float = 3.0) -> bool:
    """Return whether the hub answers within ``timeout`` seconds, also with an error.

    Return False without a request if HF_HUB_OFFLINE is set.
    """
    import httpx
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        return False
    try:
        httpx.head(constants.ENDPOINT, timeout=timeout)
    except (httpx.HTTPError, httpx.InvalidURL):
        return False
    return True


def hub_dataset(repository: str, patterns: Sequence[str]) -> Path | None:
    """Return the local folder with the files of a hub data set that match ``patterns``.

    Download or update the files if the hub can be reached, otherwise use the local cache. The hub
    is probed first, because huggingface_hub retries for most of a minute.

    Returns:
        The folder, or None if the hub cannot be reached and the cache is empty. The folder lacks
        files if the cache was filled with other patterns.

    Raises:
        UserError: the hub refuses the request, or the download fails.
    """
    import httpx
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    try:
        return Path(
            snapshot_download(
                repository,
                repo_type="dataset",
                allow_patterns=list(patterns),
                local_files_only=not hub_reachable(),
            )
        )
    except LocalEntryNotFoundError:
        return None
    except (HfHubHTTPError, httpx.HTTPError) as error:
        reason = type(error).__name__
        raise UserError(
            f"data set '{repository}' cannot be fetched from the hub: {reason}"
        ) from None


#: Files of a checkpoint to download; excludes weights of other frameworks.
MODEL_FILES = ("*.json", "*.txt", "*.model")
WEIGHTS = ("*.safetensors", "pytorch_model*.bin")


def is_cached(name: str) -> bool:
    """Return whether the hub's cache on this machine has the configuration of a checkpoint."""
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        return isinstance(try_to_load_from_cache(name, "config.json"), str)
    except HFValidationError:  # no name of the hub
        return False


def hub_model(name: str) -> Path | None:
    """Return the local folder of a hub checkpoint; download it unless the cache has weights.

    Returns:
        The folder, or None if the hub cannot be reached and the cache has no weights.

    Raises:
        UserError: not a hub name, no such checkpoint, or the download fails.
    """
    import httpx
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import (
        HfHubHTTPError,
        HFValidationError,
        LocalEntryNotFoundError,
    )

    def fetch(weights: str, local: bool) -> Path | None:
        patterns = [*MODEL_FILES, weights]
        try:
            folder = Path(snapshot_download(name, allow_patterns=patterns, local_files_only=local))
        except LocalEntryNotFoundError:
            return None
        return folder if any(folder.glob(weights)) else None

    try:
        cached = next(filter(None, (fetch(weights, True) for weights in WEIGHTS)), None)
        if cached is not None or not hub_reachable():
            return cached
        downloaded = next(filter(None, (fetch(weights, False) for weights in WEIGHTS)), None)
    except HFValidationError:
        raise UserError(f"backbone '{name}': neither a folder nor a hub name") from None
    except (HfHubHTTPError, httpx.HTTPError) as error:
        reason = type(error).__name__
        raise UserError(f"backbone '{name}' cannot be fetched from the hub: {reason}") from None
    if downloaded is None:
        raise UserError(f"backbone '{name}' has no PyTorch weights on the hub")
    return downloaded
