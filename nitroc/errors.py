"""Errors of the compiler, under the runtime's base so that one handler prints them all.

NitroError
 +- FieldError     E-FIELD    exit 3   a field of the experiment
 +- HookError      E-HOOK     exit 3   a hook's signature, routing or result
 +- ContractError  E-CONTRACT exit 3   what a traced hook may not do
 +- OptError       E-OPT      exit 3   groups, rules, decay, clip, accumulation
 +- BuildError     E-BUILD    exit 3   tracing, importing, emitting, writing
"""

from __future__ import annotations

from nitro_runtime.errors import CODES, NitroError, declare

__all__ = ["CODES", "BuildError", "ContractError", "FieldError", "HookError", "OptError"]


class FieldError(NitroError):
    area = "FIELD"
    exit_code = 3


class HookError(NitroError):
    area = "HOOK"
    exit_code = 3


class ContractError(NitroError):
    area = "CONTRACT"
    exit_code = 3


class OptError(NitroError):
    area = "OPT"
    exit_code = 3


class BuildError(NitroError):
    area = "BUILD"
    exit_code = 3


declare("FIELD", {})
declare(
    "HOOK",
    {
        60: (
            "a hook raised while it was traced",
            "The hook's own code, or a library it calls, raised on arguments of these shapes.",
            "Fix the line that is named; the full text is in the file that is named.",
        ),
        61: (
            "forward returned something else than (outputs, new_state)",
            "forward returns a pair: outputs, whose leaves are arrays with the batch axis first, "
            "and the next state.",
            "End with `return outputs, state`.",
        ),
        62: (
            "forward returned another state than it was given",
            "The state of a program has one tree, and each leaf one shape and dtype.",
            "Return a state of the same tree, shapes and dtypes.",
        ),
        63: (
            "loss returned something else than a real scalar or (sum, weight)",
            "The loss is differentiated: it has to be one real number, or a sum and its weight.",
            "Reduce it: `return loss.mean()`, or `return (loss * mask).sum(), mask.sum()`.",
        ),
        64: (
            "a metrics hook returned something else than it may",
            "train_metrics returns a dict of scalars or (sum, count); metrics on the device also "
            "takes None as a count, nt.Max, nt.Min and nt.Concat.",
            "Reduce each value to a scalar, or give it with its count.",
        ),
        65: (
            "one metric name from two sources",
            "Each reported name has one source.",
            "Rename one of them.",
        ),
        66: (
            "prepare returned something else than a dict of fields",
            "What prepare returns is added to the batch fields by name.",
            "Return a dict from field names to arrays.",
        ),
        67: (
            "a leaf of params that can't be trained",
            "params holds what is differentiated: real floating-point arrays.",
            "Move integers, bools and keys to `state`; split complex values in two real arrays.",
        ),
        68: (
            "no trainable leaf",
            "The params that build_model returned hold no array.",
            "Return the parameters as the second of `(model, params, state)`.",
        ),
        69: (
            "a leaf of params or state that is no array",
            "They hold arrays, numbers and, in state, typed PRNG keys.",
            "Keep functions, strings and objects on the model.",
        ),
        70: (
            "key paths that can't be told apart",
            "Each leaf is named by its path of dict keys, indices and attributes.",
            "Use strings or integers as keys.",
        ),
        71: (
            "a 64-bit integer that does not fit 32 bits",
            "Programs hold 32-bit integers; a 64-bit one is narrowed only when every value fits.",
            "Rescale the value, or split it in two.",
        ),
        72: (
            "a hook asks for a field its program doesn't have",
            "The field is neither in the batch nor returned by prepare.",
            "Return it from prepare, or give the parameter a default.",
        ),
    },
)
declare(
    "CONTRACT",
    {
        1: (
            "a host callback in a traced hook",
            "jax.debug.print, pure_callback and io_callback call Python from inside a program; a "
            "bundle holds no Python.",
            "Return the value from the hook, or compute it in a host hook (metrics).",
        ),
        2: (
            "an ordered effect in a traced hook",
            "Ordered effects thread a token through the program; no bundle can carry one.",
            "Remove the effect; keep what it needs in `state`.",
        ),
        3: (
            "a traced value used as a Python value",
            "`if`, `range`, `float()`, a shape or an index needs a number while tracing; "
            "this value is known only when the program runs.",
            "Use jnp.where, jax.lax.cond or jax.lax.fori_loop, or make it a GraphConst field.",
        ),
        4: (
            "a traced value kept outside its trace",
            "A hook stored a traced value on the model, in a global or in a container, and a later "
            "trace met it.",
            "Return the value (through outputs or state) instead of keeping it.",
        ),
    },
)
declare("OPT", {})
declare(
    "BUILD",
    {
        40: (
            "a traced function can't be written as a portable artifact",
            "It holds an operation that the StableHLO version asked for doesn't have.",
            "Ask for a newer version (--compat current), or write the operation otherwise.",
        ),
        41: (
            "an imported function is not valid",
            "Rewriting a traced function while it was imported made invalid StableHLO.",
            "This is a defect of the compiler: please report it with the message.",
        ),
        42: (
            "train_metrics on the host",
            "The train step would have to return its outputs, which this version doesn't compile.",
            "Leave `metrics_residency('train_metrics')` at \"device\".",
        ),
        70: (
            "the output exists",
            "A bundle is never written over an existing name unless asked to.",
            "Choose a new name, or pass `--force` to replace the bundle there.",
        ),
        71: (
            "no permission to write",
            "The directory the bundle is written into does not allow it.",
            "Write to a directory of yours, or change its permissions.",
        ),
        72: (
            "the bundle could not be written",
            "The file system refused: no space, no such device, a name too long.",
            "Free space or write elsewhere; nothing was left behind.",
        ),
        73: (
            "the output is not a bundle",
            "`--force` replaces a bundle only: what is there is something else, or holds files "
            "no bundle holds.",
            "Choose a new name, or move those files away.",
        ),
        74: (
            "a program that no loader would accept",
            "An emitted program breaks the format's rules.",
            "This is a defect of the compiler: please report it with the message.",
        ),
    },
)
