"""Runs and server settings for tests, by what matters to a test."""

from __future__ import annotations

from typing import Any

from distkeras_grid.parameter_server.settings import BindAddress, ServerSettings
from distkeras_grid.rules import DeepGradientCompression, Rule, compression_spec, spec_of
from distkeras_grid.spec import (
    AlgorithmSpec,
    CompressionSpec,
    LayoutSpec,
    RuleSpec,
    RunSpec,
    ScheduleSpec,
)

# Fields of `BindAddress`.
PLACE = ("bind_host", "advertised_host", "port", "port_retries")


def make_spec(rule: Any = "downpour", **changes: Any) -> RunSpec:
    """Return a run of one worker and 100 rows, with some fields changed.

    `rule` is a name, a rule, or its specification, as JSON or not; `compression` may be a name.
    """
    if isinstance(rule, str):
        rule = RuleSpec(name=rule)
    elif isinstance(rule, Rule):
        rule = spec_of(rule)
    elif isinstance(rule, dict):
        rule = RuleSpec.from_json(rule)
    compression = changes.get("compression")
    if isinstance(compression, str):
        changes["compression"] = CompressionSpec(name=compression)
    elif isinstance(compression, DeepGradientCompression):
        changes["compression"] = compression_spec(compression)
    spec = RunSpec(
        algorithm=AlgorithmSpec(rule=rule),
        layout=LayoutSpec(trainable_size=8),
        schedule=ScheduleSpec(rows=100, batch_size=1, window=1),
    )
    if "seats" in changes:
        changes["workers"] = changes.pop("seats")
    return spec.change(**changes)


def simulated_spec(rule: Rule, learners: Any, seats: Any, **changes: Any) -> RunSpec:
    """Return the run of these learners and rows: batches of one row, none mixed, no limits."""
    terms = {"shuffle": False, "round_timeout": None, **changes}
    state = learners[0].step_section if rule.traits.steps_on_workers else None
    shares = [len(rows) for rows in seats]
    return make_spec(
        rule,
        layout=LayoutSpec.of(learners[0].layout, state),
        rows=sum(shares),
        workers=len(shares),
        largest_share=None if max(shares) - min(shares) <= 1 else max(shares),
        **terms,
    )


def make_settings(**changes: Any) -> ServerSettings:
    """Return the settings of a server on this host for a run of `make_spec`."""
    place = {"bind_host": "127.0.0.1", "advertised_host": "127.0.0.1"}
    place |= {name: changes.pop(name) for name in PLACE if name in changes}
    run = changes.pop("run", "test")
    return ServerSettings(run=run, spec=make_spec(**changes), place=BindAddress(**place))
