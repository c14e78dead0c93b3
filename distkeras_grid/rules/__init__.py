"""Update rules: how workers' windows change the center, without sockets, Keras or clocks."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any, Literal

from distkeras_grid.errors import ConfigurationError, UnknownArgumentError
from distkeras_grid.rules.adagrad import AdagradRule
from distkeras_grid.rules.base import (
    AsynchronousRule,
    CommitInfo,
    CommitKind,
    LocalSteps,
    Memory,
    ReplyKind,
    Rule,
    RuleProperties,
    SynchronousRule,
)
from distkeras_grid.rules.delta import (
    AccumulatedGradientRule,
    DeltaRule,
    DistanceRule,
    DownpourRule,
    DynamicRateRule,
)
from distkeras_grid.rules.elastic import ElasticMomentumRule, ElasticRoundRule, ElasticRule
from distkeras_grid.rules.gem import EnergyMatchingRule
from distkeras_grid.rules.gradient_compression import (
    Accumulator,
    DeepGradientCompression,
    accumulators,
    gradient_compression,
)
from distkeras_grid.rules.single import IndependentRule, SequentialRule
from distkeras_grid.rules.statistics import apply_reply, compute_commit
from distkeras_grid.rules.synchronous import AveragingRule, MeanGradientRule
from distkeras_grid.spec import CompressionSpec, RuleSpec

__all__ = [
    "RULES",
    "AccumulatedGradientRule",
    "Accumulator",
    "AdagradRule",
    "AsynchronousRule",
    "AveragingRule",
    "CommitInfo",
    "CommitKind",
    "DeepGradientCompression",
    "DeltaRule",
    "DistanceRule",
    "DownpourRule",
    "DynamicRateRule",
    "ElasticMomentumRule",
    "ElasticRoundRule",
    "ElasticRule",
    "EnergyMatchingRule",
    "IndependentRule",
    "LocalSteps",
    "MeanGradientRule",
    "Memory",
    "ReplyKind",
    "Rule",
    "RuleProperties",
    "SequentialRule",
    "SynchronousRule",
    "accumulators",
    "apply_reply",
    "build_rule",
    "compression_of",
    "compression_spec",
    "compute_commit",
    "gradient_compression",
    "rule_of",
    "spec_of",
]

RULES: dict[str, type[Rule]] = {
    rule.name: rule
    for rule in (
        SequentialRule,
        IndependentRule,
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

    Examples
    --------
    >>> build_rule("elastic", {"alpha": 0.25})
    ElasticRule(alpha=0.25)
    """
    if name not in RULES:
        near = difflib.get_close_matches(name, RULES, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise ConfigurationError(
            f"There is no rule of this name.{hint} Received: {name!r}. Choose one of "
            f"{', '.join(RULES)}."
        )
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


def rule_of(spec: RuleSpec) -> Rule:
    """Build the rule that a run's specification names; see `build_rule`.

    Examples
    --------
    >>> rule_of(RuleSpec(name="elastic", parameters={"alpha": 0.25}))
    ElasticRule(alpha=0.25)
    """
    return build_rule(spec.name, spec.parameters)


def spec_of(rule: Rule) -> RuleSpec:
    """Return the name and the parameters of a rule, from which `rule_of` builds it again.

    Examples
    --------
    >>> spec_of(ElasticRule(0.25)).to_json()
    {'name': 'elastic', 'parameters': {'alpha': 0.25}}
    """
    return RuleSpec(name=rule.name, parameters=dict(rule.parameters()))


def compression_of(
    spec: CompressionSpec | None,
) -> Literal["bfloat16"] | DeepGradientCompression | None:
    """Build the compression that a run's specification names.

    Examples
    --------
    >>> compression_of(CompressionSpec(name="dgc", parameters={"sparsity": 0.99})).sparsity
    0.99
    """
    if spec is None:
        return None
    return "bfloat16" if spec.name == "bfloat16" else DeepGradientCompression(**spec.parameters)


def compression_spec(
    compression: Literal["bfloat16"] | DeepGradientCompression | None,
) -> CompressionSpec | None:
    """Return the name and the parameters of a compression, from which it is built again."""
    if (settings := gradient_compression(compression)) is not None:
        return CompressionSpec(name="dgc", parameters=asdict(settings))
    return None if compression is None else CompressionSpec(name="bfloat16")
