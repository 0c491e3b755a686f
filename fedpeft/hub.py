"""The Hugging Face hub, asked so that a machine without a network gets its answer at once."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fedpeft.errors import UserError


def hub_reachable(timeout: float = 3.0) -> bool:
    """Return whether the hub answers within ``timeout`` seconds.

    False without asking when the environment says HF_HUB_OFFLINE. Any answer counts, also an
    error page: it shows that there is a way to the server.
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

    Fetched (or found up to date) when the hub can be reached, else taken from the local cache.
    The hub is probed first, because huggingface_hub itself retries for most of a minute.

    Returns:
        The folder, or None when the hub cannot be reached and nothing is in the cache. A cache
        that was filled with other patterns gives a folder that lacks these files.

    Raises:
        UserError: the hub refuses, or the download breaks off.
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


#: What a checkpoint needs here; other frameworks' weights stay on the hub.
_MODEL_FILES = ("*.json", "*.txt", "*.model")
_WEIGHTS = ("*.safetensors", "pytorch_model*.bin")


def hub_model(name: str) -> Path | None:
    """Return the local folder of a hub checkpoint, fetched if it is not in the cache whole.

    Returns:
        The folder, or None when the hub cannot be reached and no weights are in the cache.

    Raises:
        UserError: not a hub name, no such checkpoint, or the download breaks off.
    """
    import httpx
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import (
        HfHubHTTPError,
        HFValidationError,
        LocalEntryNotFoundError,
    )

    def fetch(weights: str, local: bool) -> Path | None:
        patterns = [*_MODEL_FILES, weights]
        try:
            folder = Path(snapshot_download(name, allow_patterns=patterns, local_files_only=local))
        except LocalEntryNotFoundError:
            return None
        return folder if any(folder.glob(weights)) else None

    try:
        cached = next(filter(None, (fetch(weights, True) for weights in _WEIGHTS)), None)
        if cached is not None or not hub_reachable():
            return cached
        found = next(filter(None, (fetch(weights, False) for weights in _WEIGHTS)), None)
    except HFValidationError:
        raise UserError(f"backbone '{name}': neither a folder nor a hub name") from None
    except (HfHubHTTPError, httpx.HTTPError) as error:
        reason = type(error).__name__
        raise UserError(f"backbone '{name}' cannot be fetched from the hub: {reason}") from None
    if found is None:
        raise UserError(f"backbone '{name}' has no PyTorch weights on the hub")
    return found
