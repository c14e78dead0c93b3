"""Update rules: how workers' windows change the center, without sockets, Keras or clocks."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from distkeras_grid.errors import ConfigurationError, UnknownArgumentError
from distkeras_grid.rules.adagrad import AdagradRule
from distkeras_grid.rules.base import (
    AsynchronousRule,
    CommitInfo,
    LocalSteps,
    Memory,
    OptimizerState,
    Rule,
    StatisticsSource,
    SynchronousRule,
)
from distkeras_grid.rules.downpour import AccumulatedGradientRule, DownpourRule
from distkeras_grid.rules.elastic import ElasticMomentumRule, ElasticRoundRule, ElasticRule
from distkeras_grid.rules.energy import EnergyMatchingRule
from distkeras_grid.rules.gradient_compression import Accumulator, DeepGradientCompression
from distkeras_grid.rules.sequential import MemberRule, SequentialRule
from distkeras_grid.rules.staleness import DistanceRule, DynamicRateRule
from distkeras_grid.rules.statistics import adopt_vector, propose_vector
from distkeras_grid.rules.synchronous import AveragingRule, MeanGradientRule

__all__ = [
    "RULES",
    "AccumulatedGradientRule",
    "Accumulator",
    "AdagradRule",
    "AsynchronousRule",
    "AveragingRule",
    "CommitInfo",
    "DeepGradientCompression",
    "DistanceRule",
    "DownpourRule",
    "DynamicRateRule",
    "ElasticMomentumRule",
    "ElasticRoundRule",
    "ElasticRule",
    "EnergyMatchingRule",
    "LocalSteps",
    "MeanGradientRule",
    "MemberRule",
    "Memory",
    "OptimizerState",
    "Rule",
    "SequentialRule",
    "StatisticsSource",
    "SynchronousRule",
    "adopt_vector",
    "build_rule",
    "propose_vector",
]

RULES: dict[str, type[Rule]] = {
    rule.name: rule
    for rule in (
        SequentialRule,
        MemberRule,
        DownpourRule,
        AdagradRule,
        AccumulatedGradientRule,
        DynamicRateRule,
        DistanceRule,
        EnergyMatchingRule,
        ElasticRule,
        ElasticMomentumRule,
        ElasticRoundRule,
        AveragingRule,
        MeanGradientRule,
    )
}


def build_rule(name: str, parameters: Mapping[str, Any]) -> Rule:
    """Build a rule from its name and its parameters.

    Parameters
    ----------
    name : str
        A key of `RULES`.
    parameters : mapping
        What ``rule.parameters()`` returned.

    Raises
    ------
    ConfigurationError
        If no rule has this name, or a parameter is missing, unknown or out of range.

    Examples
    --------
    >>> build_rule("elastic", {"alpha": 0.25})
    ElasticRule(alpha=0.25)
    """
    if name not in RULES:
        near = difflib.get_close_matches(name, RULES, n=1)
        hint = f" (did you mean {near[0]!r}?)" if near else ""
        raise ConfigurationError(f"There is no rule {name!r}{hint}. Known: {', '.join(RULES)}.")
    known = [field.name for field in fields(RULES[name])]
    unknown = sorted(set(parameters) - set(known))
    if unknown:
        raise UnknownArgumentError.among(f"The rule {name!r}", unknown, known)
    try:
        return RULES[name](**parameters)
    except TypeError as error:
        raise ConfigurationError(
            f"The rule {name!r} cannot be built from {dict(parameters)!r}: {error}."
        ) from error
