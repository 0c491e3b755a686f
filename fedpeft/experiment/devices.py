"""The ``[devices]`` section of an experiment, and what it and a deadline need of other settings."""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import Field

from fedpeft.experiment.federation import FederationSection
from fedpeft.experiment.privacy import PrivacySection
from fedpeft.experiment.settings import LocalSection
from fedpeft.methods.settings import Section


class DevicesSection(Section):
    """Speed, network and availability of simulated clients, which give virtual time.

    Medians over clients; each client's own numbers are log-normal and stay the same for the run.
    """

    step_seconds: float = Field(
        0.0, ge=0, description="virtual seconds per local step; 0 = clients without a speed"
    )
    spread: float = Field(
        0.0, ge=0, le=5, description="standard deviation of the logarithm of step_seconds"
    )
    up: float = Field(0.0, ge=0, description="bytes per second to the server; 0 = no limit")
    down: float = Field(0.0, ge=0, description="bytes per second from the server; 0 = no limit")
    rate_spread: float = Field(
        0.0, ge=0, le=5, description="standard deviation of the logarithm of both rates"
    )
    availability: float = Field(
        1.0, gt=0, le=1, description="share of the clients that can be asked at any time"
    )
    dropout: float = Field(
        0.0, ge=0, lt=1, description="share of trainings in which a client vanishes"
    )


def in_devices(
    devices: DevicesSection,
    federation: FederationSection,
    local: LocalSection,
    privacy: PrivacySection,
    asked: int,
) -> Iterator[str]:
    """Yield one line per contradiction, with ``asked`` clients per round."""
    if not devices.step_seconds:
        for key, field in type(devices).model_fields.items():
            if (value := getattr(devices, key)) != field.default:
                yield (
                    f"devices.{key} = {value:g}: clients have no speed; set devices.step_seconds, "
                    f"or leave it out"
                )
    if asked > federation.clients:
        yield (
            f"federation.over_selection = {federation.over_selection:g}: asks {asked} clients, "
            f"more than federation.clients = {federation.clients}"
        )
    if federation.over_selection > 1 and privacy.central:
        yield (
            f"federation.over_selection = {federation.over_selection:g}: a fast client displaces "
            f"another, which privacy.client_noise = 'server' does not account for; set "
            f"federation.deadline and a larger federation.fraction"
        )
    if federation.partial and federation.deadline is None:
        yield "federation.partial = true: set federation.deadline, at which clients stop"
    if federation.partial and local.perturbations:
        yield "federation.partial = true: expected local.perturbations = 0, whose steps are sent"
    if federation.fednova and federation.max_update_norm not in ("auto", 0):
        yield (
            f"federation.fednova = true: lengthens updates beyond federation.max_update_norm = "
            f"{federation.max_update_norm}; expected 'auto' or 0"
        )
    if federation.fednova and privacy.clients:
        yield (
            "federation.fednova = true: lengthens updates beyond privacy.client_clip; leave it "
            "out, or expected privacy.unit = 'none' or 'example'"
        )
