"""The ``[privacy]`` section of an experiment."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from fedpeft.settings import Section


class PrivacySection(Section):
    """What is protected, how strongly, and by whom.

    The keys without a prefix are about single examples; those with ``client_`` about whole
    clients, and take the plain ones' values where they are left out.
    """

    unit: Literal["none", "example", "client", "both"] = Field(
        "none",
        description="whom the result protects: none | example (DP-SGD at the clients) | client "
        "(all of a client's examples) | both",
    )
    epsilon: float | None = Field(
        None, gt=0, description="target and limit; the noise is calibrated for the whole run"
    )
    noise_multiplier: float | None = Field(
        None, ge=0, description="instead of epsilon: noise over clip; 0 = no noise, no privacy"
    )
    delta: float | None = Field(
        None, gt=0, lt=1, description="default 1 / n^1.1 of the n examples or clients"
    )
    clip: float = Field(
        1.0,
        ge=0,
        description="L2 norm that an example's gradient is cut to; 0 = not, without noise",
    )
    clipping: Literal["flat", "automatic"] = Field(
        "flat",
        description="flat: longer gradients are cut | automatic: all are scaled to nearly clip",
    )
    physical_batch: int = Field(
        64, ge=1, description="examples in memory at once, however large local.batch_size is"
    )
    participations: int = Field(
        0, ge=0, description="rounds a client's epsilon has to last for; 0 = its share of all"
    )
    budget: float | None = Field(
        None,
        gt=0,
        description="limit of a ledger, over all runs in it; default: epsilon",
    )
    ledger: str = Field(
        "",
        description="simulation: folder of ledgers to go on with; empty = in the run folder",
    )
    client_noise: Literal["server", "clients"] = Field(
        "server", description="who adds the noise that hides a client: server | clients (local DP)"
    )
    client_epsilon: float | None = Field(None, gt=0, description="default: epsilon")
    client_noise_multiplier: float | None = Field(
        None, ge=0, description="default: noise_multiplier"
    )
    client_delta: float | None = Field(None, gt=0, lt=1, description="default: delta")
    client_clip: float = Field(
        1.0, ge=0, description="L2 norm that a client's update is cut to; adaptive: the first one"
    )
    client_quantile: float = Field(
        0.0, ge=0, lt=1, description="adaptive: cut to this quantile of the norms; 0 = fixed"
    )
    reproducible: bool = Field(
        False, description="noise from the seed, for tests: the result must not be released"
    )

    @property
    def examples(self) -> bool:
        """Whether single examples are protected."""
        return self.unit in ("example", "both")

    @property
    def clients(self) -> bool:
        """Whether whole clients are protected."""
        return self.unit in ("client", "both")

    @property
    def central(self) -> bool:
        """Whether the server adds the noise that protects clients."""
        return self.clients and self.client_noise == "server"

    @property
    def local(self) -> bool:
        """Whether each client adds the noise that protects it."""
        return self.clients and self.client_noise == "clients"

    def of_clients(self) -> tuple[float | None, float | None, float | None]:
        """Return (epsilon, noise multiplier, delta) at the level of clients."""
        epsilon, sigma = self.client_epsilon, self.client_noise_multiplier
        if epsilon is None and sigma is None:
            epsilon, sigma = self.epsilon, self.noise_multiplier
        return epsilon, sigma, self.delta if self.client_delta is None else self.client_delta
