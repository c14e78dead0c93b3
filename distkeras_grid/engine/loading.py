"""From an archive to an engine inside a worker process, and from there to the next run.

A Spark Python worker lives on for the next job. Its compiled functions are worth seconds, so the
engine is kept; its state never is.
"""

from __future__ import annotations

import hashlib
import importlib
import io
import json
import logging
import os
import re
import sys
import tempfile
import zipfile
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Literal

from distkeras_grid.engine.compile_settings import CompileSettings, compile_model
from distkeras_grid.engine.keras_model import model_from_bytes
from distkeras_grid.engine.tensorflow import TensorFlowEngine
from distkeras_grid.rules import LocalSteps, OptimizerState

logger = logging.getLogger(__name__)

# A line of TensorFlow's log that tells nothing but a fact.
NOTICE = re.compile(rb"I\d{4} |WARNING: All log messages before absl::InitializeLog")

# Each holds a model and its compiled functions; two serve whoever alternates between two models.
KEPT_ENGINES = 2
_engines: OrderedDict[str, TensorFlowEngine] = OrderedDict()


def prepare_process(threads: int) -> int:
    """Limit TensorFlow to some threads, before its first operation.

    Parameters
    ----------
    threads : int
        Threads of one operation, and operations at a time: the cpus of the Spark task.

    Returns
    -------
    int
        The threads in force. A process in which TensorFlow already runs keeps its number (0:
        all cores); if that is another one, a warning is logged, for results stay right and only
        workers on one host get in each other's way.
    """
    if "tensorflow" not in sys.modules:
        os.environ["OMP_NUM_THREADS"] = str(threads)
        # Of what TensorFlow writes at start-up only errors concern who reads an executor's log.
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
        # By its own choice TensorFlow takes the oneDNN kernels with AVX-512 only; with AVX2 they
        # make convolutions 1.5 times faster (measured on Zen 3).
        os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")
        with _without_notices():
            importlib.import_module("tensorflow")
    import tensorflow as tf

    threading = tf.config.threading
    try:
        threading.set_intra_op_parallelism_threads(threads)
        threading.set_inter_op_parallelism_threads(threads)
    except RuntimeError:
        in_force: int = threading.get_intra_op_parallelism_threads()
        logger.warning(
            "TensorFlow already runs in this process with %s threads, %s were asked for; start a "
            "fresh Python process (spark.python.worker.reuse=false) to change it",
            in_force or "all cores as",
            threads,
        )
        return in_force
    return threads


@contextmanager
def _without_notices() -> Iterator[None]:
    """Hold back notices on standard error, and hand on all else.

    TensorFlow tells at import that it uses oneDNN, before it has read TF_CPP_MIN_LOG_LEVEL.
    """
    if os.environ["TF_CPP_MIN_LOG_LEVEL"] == "0":
        yield
        return
    sys.stderr.flush()
    stderr = os.dup(2)
    with tempfile.TemporaryFile() as held:
        os.dup2(held.fileno(), 2)
        try:
            yield
        finally:
            sys.stderr.flush()
            os.dup2(stderr, 2)
            os.close(stderr)
            held.seek(0)
            kept = [line for line in held if not NOTICE.match(line)]
            os.write(2, b"".join(kept))


def load_engine(
    archive: bytes,
    settings: Mapping[str, Any] | None = None,
    *,
    custom_objects: Mapping[str, Any] | None = None,
    scaling: Sequence[tuple[float, float]] = (),
    block_shape: tuple[int, int] | None = None,
    jit: bool | Literal["auto"] = "auto",
    local_steps: LocalSteps = LocalSteps.OPTIMIZER,
    momentum: float = 0.0,
    optimizer_state: OptimizerState = "keep",
) -> TensorFlowEngine:
    """Build an engine, or take the compiled one of an earlier run in this process.

    Parameters
    ----------
    archive : bytes
        The model, from `distkeras_grid.engine.keras_model.model_to_bytes`.
    settings : mapping, optional
        What `CompileSettings.to_json` returned.
    custom_objects : mapping of str to object, optional
        The user's own layers, losses and metrics by name. An engine with these is not kept:
        their code may have changed under the same names.
    scaling, block_shape, jit, local_steps, momentum, optimizer_state
        As in `TensorFlowEngine`.

    Returns
    -------
    TensorFlowEngine
        In the state of the archive, whether kept or not.

    Raises
    ------
    ConfigurationError
        If the model cannot be loaded or cannot be trained.
    """
    objects = dict(custom_objects or {})
    model = model_from_bytes(archive, objects)
    compile_model(model, CompileSettings.from_json(settings or {}, objects), objects)
    build = partial(
        TensorFlowEngine,
        model,
        scaling=scaling,
        block_shape=block_shape,
        jit=jit,
        local_steps=local_steps,
        momentum=momentum,
        optimizer_state=optimizer_state,
    )
    if objects:
        return build()
    key = _key(archive, settings, {**build.keywords, "local_steps": local_steps.value})
    if key in _engines:
        _engines[key].adopt(model)
    else:
        _engines[key] = build()
    _engines.move_to_end(key)
    if len(_engines) > KEPT_ENGINES:
        _engines.popitem(last=False)
    return _engines[key]


def _key(archive: bytes, settings: Mapping[str, Any] | None, options: Mapping[str, Any]) -> str:
    with zipfile.ZipFile(io.BytesIO(archive)) as members:
        config = members.read("config.json").decode()
    text = json.dumps([config, dict(settings or {}), dict(options)], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()
