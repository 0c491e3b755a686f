"""The ``[privacy]`` section of an experiment."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from fedpeft.methods.settings import MOST, Section


class PrivacySection(Section):
    """Unit that is protected, privacy budget, and place of the noise.

    Keys without a prefix are about single examples. Keys with ``client_`` are about whole clients;
    where left out they take the value of the key without the prefix.
    """

    unit: Literal["none", "example", "client", "both"] = Field(
        "none",
        description="what differential privacy protects: none | example (DP-SGD at the clients) | "
        "client (all of a client's examples) | both",
    )
    epsilon: float | None = Field(
        None, gt=0, description="target and limit for the whole run; the noise is calibrated to it"
    )
    noise_multiplier: float | None = Field(
        None,
        ge=0,
        description="instead of epsilon: standard deviation of the noise / clip; 0 = no privacy",
    )
    delta: float | None = Field(
        None, gt=0, lt=1, description="default: 1 / n^1.1 for n examples or clients"
    )
    clip: float = Field(
        1.0,
        ge=0,
        description="L2 norm to clip an example's gradient to; 0 = no clipping, without noise only",
    )
    clipping: Literal["flat", "automatic"] = Field(
        "flat",
        description="flat: shorten gradients longer than clip | automatic: scale all to about clip",
    )
    rank: int = Field(
        0,
        ge=0,
        le=MOST,
        description="method full: rank of the gradient carriers of RGP, whose gradients are "
        "clipped and noised instead of those of whole matrices; 0 = DP-SGD",
    )
    physical_batch: int = Field(
        64, ge=1, le=MOST, description="examples in memory at once; local.batch_size may be larger"
    )
    participations: int = Field(
        0,
        ge=0,
        le=MOST,
        description="rounds to calibrate a client's noise for; 0 = its expected share of all",
    )
    budget: float | None = Field(
        None,
        gt=0,
        description="limit of a privacy ledger over all its runs; default: epsilon",
    )
    ledger: str = Field(
        "",
        description="simulation: folder of privacy ledgers to continue; empty = the run folder",
    )
    mechanism: Literal["gaussian", "banded", "blt"] = Field(
        "gaussian",
        description="noise of the server for clients: gaussian (independent each round, for a "
        "secret sample of clients) | banded | blt (correlated over rounds by a matrix, for "
        "clients that take turns; blt keeps fewer vectors)",
    )
    separation: int = Field(
        0,
        ge=0,
        le=MOST,
        description="banded, blt: a client takes part again so many rounds later or after more; "
        "0 = clients / clients of a round, the most that is possible",
    )
    client_noise: Literal["server", "clients", "secure"] = Field(
        "server",
        description="who adds the noise that protects clients: server | clients (local DP) | "
        "secure (all clients of a sum under masks, a part each; with federation.secure)",
    )
    client_epsilon: float | None = Field(None, gt=0, description="default: epsilon")
    client_noise_multiplier: float | None = Field(
        None, ge=0, description="default: noise_multiplier"
    )
    client_delta: float | None = Field(None, gt=0, lt=1, description="default: delta")
    client_clip: float = Field(
        1.0,
        ge=0,
        description="L2 norm to clip a client's update to; with client_quantile: the first clip",
    )
    client_quantile: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="adapt the clip to this quantile of the norms; 0 = fixed clip",
    )
    reproducible: bool = Field(
        False, description="draw noise from the seed, for tests; do not release the result"
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

    @property
    def distributed(self) -> bool:
        """Whether the clients of a sum under masks add the noise that protects them, together."""
        return self.clients and self.client_noise == "secure"

    @property
    def charges_clients(self) -> bool:
        """Whether the clients' ledgers are charged for the noise that protects them."""
        return self.local or self.distributed

    def of_clients(self) -> tuple[float | None, float | None, float | None]:
        """Return (epsilon, noise multiplier, delta) for whole clients."""
        epsilon, sigma = self.client_epsilon, self.client_noise_multiplier
        if epsilon is None and sigma is None:
            epsilon, sigma = self.epsilon, self.noise_multiplier
        return epsilon, sigma, self.delta if self.client_delta is None else self.client_delta
