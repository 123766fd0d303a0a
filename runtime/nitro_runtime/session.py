"""A call of `train()`: the lock, the logs, what must be known before step 1, and the end."""

from __future__ import annotations

import sys
import time

from nitro_runtime import cache, pjrt
from nitro_runtime.checkpoints import TopKCheckpointer
from nitro_runtime.data.prefetch import unwrap
from nitro_runtime.data.source import probe
from nitro_runtime.errors import GuardError, NitroError
from nitro_runtime.host import host_code
from nitro_runtime.loop import Loop
from nitro_runtime.machine import SAMPLED, TRAIN
from nitro_runtime.places import running
from nitro_runtime.restore import DONE, nothing_left
from nitro_runtime.run import Run
from nitro_runtime.saving import stopper_state
from nitro_runtime.signals import TERMINATED, Interrupts
from nitro_runtime.stopping import check_metric
from nitro_runtime.training import TrainProgram
from nitro_runtime.verdict import GUARD

FAILED = ("guard", "diverged", "error")


def train(run: Run) -> None:
    """Trains until something stops it, or says why there is nothing to do.

    SystemExit(143) after SIGTERM, KeyboardInterrupt after a second Ctrl-C.
    """
    why = nothing_to_do(run)
    if why is not None:
        run.note(f"nothing to train: {why}")
        return
    pjrt.tune_malloc()
    with Interrupts() as interrupts, running(host_code(run.host)):
        run.directory.acquire(run.note)
        try:
            _train(run, interrupts)
        finally:
            run.directory.release()
    if interrupts.terminated and run.stop_reason == "interrupted":
        sys.exit(TERMINATED)


def nothing_to_do(run: Run) -> str | None:
    """Why a call of `train()` returns at once; None when it trains."""
    if run.stop_reason in FAILED or run.stop_reason in DONE:
        return f"the run ended as {run.stop_reason} at epoch {run.epoch}, step {run.step}"
    if run.restored is None or run.stop_reason is not None:
        return None
    record, options = run.restored.record, run.options
    why = nothing_left(record, options.max_epochs, options.max_steps, run.stopper)
    if why is not None:
        run.stop_reason = record.meta["stop_reason"]
    return why


def _train(run: Run, interrupts: Interrupts) -> None:
    run.requested, run.started = False, time.monotonic()
    if isinstance(run.checkpointer, TopKCheckpointer):
        run.checkpointer.recover()
    run.directory.adopt(run.machine.bundle)
    run.directory.status(
        state="running", stop_reason=None, run_id=run.run_id, step=run.step, epoch=run.epoch
    )
    _open_loggers(run)
    reason, error = "error", None
    try:
        check_metrics(run)
        check_records(run)
        reason = Loop(run, *_ready(run, interrupts), interrupts).train()
    except _Interrupted:
        reason = "interrupted"
        run.say(f"stopped ({reason}) while programs compiled: no step was made")
    except GuardError as failed:
        reason, error = "guard" if failed.code == GUARD else "diverged", failed
        raise
    except KeyboardInterrupt:
        reason = "interrupted"
        raise
    except Exception as failed:
        error = failed
        raise
    finally:
        _finish(run, reason, error)


def _open_loggers(run: Run) -> None:
    run.loggers.bind(run.directory.path)
    if run.restored is None or run.restored.forks:
        run.loggers.params(run.params())
    if run.restored is not None:
        run.loggers.other("resume", {"run_id": run.run_id, "step": run.step, "epoch": run.epochs})
    if run.options.tags:
        run.loggers.tags(run.options.tags)
    report = run.host.report()
    if report:
        run.loggers.other("binding_report", report)


def check_metrics(run: Run) -> None:
    """E-USAGE-067 for a ranking or stopping metric that nobody emits, naming those emitted."""
    checkpointer, stopper = run.checkpointer, run.stopper
    wanted = {
        "checkpointer": getattr(checkpointer, "metric", None),
        "early_stop": getattr(stopper, "metric", None),
    }
    source = run.host.splits.get("val")
    if source is None:
        if wanted["checkpointer"] == "val_loss" and getattr(checkpointer, "keep_latest", True):
            del wanted["checkpointer"]
        emitted: list[str] = []
    else:
        emitted = run.evaluator.device_metrics("val")
        if any(name not in emitted for name in wanted.values() if name is not None):
            # Names of host metrics are known only once they have run: one batch, dropped.
            emitted = run.evaluator.emitted("val", source, run.seed)
    for option, name in wanted.items():
        check_metric(name, emitted, option)


def check_records(run: Run) -> None:
    """What loggers and the stopping rule give a checkpoint can be stored, before there is one."""
    if run.checkpointer is not None:
        run.loggers.states()
        stopper_state(run.stopper)


class _Interrupted(Exception):
    """A signal came while programs compiled."""


def _ready(run: Run, interrupts: Interrupts) -> tuple[TrainProgram, TrainProgram | None]:
    """The train program, and the sampled one where something is selected. Compiles everything this
    run is known to need, said in one line."""
    machine = run.machine

    def poll() -> None:
        if interrupts.caught is not None:
            raise _Interrupted

    machine.poll = poll
    before = set(machine.compiled)
    hits = cache.cache_stats()["hits"]
    started = time.perf_counter()
    needed = [TRAIN] if run.selection is None else [TRAIN, SAMPLED]
    source = run.host.splits.get("val")
    if source is not None:
        last = probe(unwrap(source), "val", run.seed).last_rows
        needed += run.evaluator.programs("val", [] if last is None else [last])
    try:
        for name in needed:
            machine.program(name)
    finally:
        machine.poll = None
    made = [name for name in machine.compiled if name not in before]
    if made:
        run.say(
            f"{len(made)} programs ready in {time.perf_counter() - started:.1f} s "
            f"({cache.cache_stats()['hits'] - hits} from the cache): {', '.join(made)}"
        )
    sampled = run.selection and TrainProgram(machine, run.scalars, run.selection)
    return TrainProgram(machine, run.scalars), sampled


def _finish(run: Run, reason: str, error: BaseException | None) -> None:
    """Says everywhere how the run ended; a last checkpoint that could not be written fails it."""
    run.display.stop()
    unwritten = _finish_checkpoints(run, reason)
    if unwritten is not None and error is not None:
        run.say(_one_line(unwritten))
    elif unwritten is not None:
        reason, error = "error", unwritten
    run.stop_reason = reason
    text = None if error is None else f"failed: {_one_line(error)}"
    run.loggers.finish(reason, text)
    run.directory.status(
        state="failed" if reason in FAILED else "done",
        stop_reason=reason,
        step=run.step,
        t=run.t,
        epoch=run.epoch,
        error=text,
    )
    if unwritten is not None and error is unwritten:
        raise unwritten


def _finish_checkpoints(run: Run, reason: str) -> Exception | None:
    finish = getattr(run.checkpointer, "finish", None)
    try:
        if finish is not None:
            finish(run.run_id, reason)
    except Exception as error:  # a store of the user's own may raise anything: said, then raised
        return error
    return None


def _one_line(error: BaseException) -> str:
    if isinstance(error, NitroError):
        return error.text().splitlines()[0]
    return f"{type(error).__name__}: {error}"
