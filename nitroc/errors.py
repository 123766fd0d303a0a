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


declare(
    "FIELD",
    {
        1: (
            "a Host field is used in a traced hook",
            "Host fields never reach a compiled program, so their values do not exist there.",
            "Mark it GraphConst (a new value recompiles) or Device (never recompiles), or read it "
            "in a host hook.",
        ),
        2: (
            "a Device field decides structure",
            "A Device value is an input of the program: if, range, a shape or an index position "
            "needs a value that is known when the program is made.",
            "Mark the field GraphConst.",
        ),
        3: (
            "a marker is used wrongly",
            "Device, Host and GraphConst each stand around exactly one type, and outermost.",
            "Write name: nt.Device[float].",
        ),
        4: (
            "a class attribute looks like a field and is none",
            "Only annotated names become fields; the value would bind nowhere.",
            "Annotate it, or start its name with an underscore.",
        ),
        5: (
            "the default of a field is mutable",
            "Every instance would share the one object.",
            "Use a tuple, or dataclasses.field(default_factory=...).",
        ),
        6: (
            "a field has the name of a hook",
            "The name would hide the hook.",
            "Rename the field, or write the hook as a method.",
        ),
        7: (
            "a GraphConst value has no content to compare",
            "Programs are reused by the content of their constants: a value and its deep copy "
            "must be equal and hash alike.",
            "Use numbers, strings, tuples, frozen dataclasses of those, or plain functions.",
        ),
        8: (
            "a value does not have its field's type",
            "GraphConst and Device values are converted to the declared type; this one can't be.",
            "Give a value of that type, or declare another type.",
        ),
        9: (
            "a Device value can't be put on a device",
            "A Device field holds a number, a numeric array, or a nested dict or tuple of these.",
            "Convert the value, or mark the field Host.",
        ),
        10: (
            "a run option has a marker it can't have",
            "A run option is no input of a program, and most never change one.",
            "Leave the field unmarked (Host).",
        ),
        11: (
            "an unknown preset",
            "The class's presets() has no such name.",
            "Use one of those listed.",
        ),
        12: (
            "a base class annotates fields and is no Experiment",
            "Only subclasses of nt.Experiment have fields.",
            "Derive the base class from nt.Experiment.",
        ),
        13: (
            "an annotation can't be read",
            "The annotation uses a marker, but names something that is not there at run time.",
            "Import what it names at run time.",
        ),
        14: (
            "a field was given in two ways",
            "A preset is recorded by the two-argument form; preset= claims one for an instance.",
            "Give one of them.",
        ),
        15: (
            "an unknown field",
            "No field of the class has this name.",
            "Use one of the fields listed.",
        ),
        16: (
            "a field has no value",
            "It has no default and none was given.",
            "Give it in the constructor, by --set or in a preset.",
        ),
    },
)
declare(
    "HOOK",
    {
        1: (
            "a hook is missing",
            "build_data (unless data= is given), build_model, forward and loss are required.",
            "Write the hook; its signature is in the message.",
        ),
        2: (
            "a hook has another signature",
            "Hooks take fixed arguments by position and batch fields by keyword only.",
            "Write the signature shown.",
        ),
        3: (
            "a hook asks for a field that no batch has",
            "The keyword-only parameters of a hook name fields of the batch.",
            "Correct the name, or give the parameter a default to make it optional.",
        ),
        4: (
            "an optional field is nearly the name of one that exists",
            "A misspelt name would silently take its default.",
            "Correct the name, or rename the parameter.",
        ),
        5: (
            "a hook this version does not run",
            "The hook belongs to the language, and nothing here would call it.",
            "Remove it; nothing that is written is ignored silently.",
        ),
        6: (
            "a hook returned something else",
            "The result does not have the form the hook's contract states.",
            "Return what the message says.",
        ),
        7: (
            "derive names an unknown field",
            "derive returns values for fields of the experiment.",
            "Correct the name, or declare the field.",
        ),
        8: (
            "a host metric asks for a field that prepare makes on the device",
            "Host metrics see the batch as it was loaded.",
            "Return 'device' from metrics_residency, or compute the field in metrics.",
        ),
        9: (
            "a host hook asks for train or key",
            "Only traced hooks are given train and key.",
            "Remove the parameter.",
        ),
        10: (
            "the experiment's own code raised",
            "A host hook, build_model or an accessor raised while the experiment was set up.",
            "Fix the line that is named; the whole traceback is in the file that is named.",
        ),
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
        73: (
            "build_model returns another tree than it did",
            "Traced, or called again for the trees of a bundle, build_model returned other leaves.",
            "Let nothing but shapes and GraphConst fields decide the tree.",
        ),
        74: (
            "a hook that is not there",
            "The program to compile calls a hook that the experiment doesn't define.",
            "Define the hook.",
        ),
        75: (
            "the library of a model is not installed",
            "nt.nn.linen and nt.nn.nnx need flax, nt.nn.equinox needs equinox; nitroc installs "
            "neither by itself.",
            "Install the extra the message names.",
        ),
        76: (
            "nt.nn was given another object",
            "Each function takes an instance of its own library's module.",
            "Use the function of that library, and give it an instance, not the class.",
        ),
        77: (
            "a model draws random numbers without a key",
            "Dropout and its like take their numbers from the key that model.apply is given.",
            "Declare key in forward, and call model.apply(..., train=train, key=key).",
        ),
        78: (
            "model.apply was given other params or state",
            "A model rebuilds its module from the nested dicts it was made with.",
            "Pass the params and state that forward was given.",
        ),
        79: (
            "a stateful module returned no state",
            "An Equinox module that holds state takes it after its inputs and returns it after its "
            "outputs.",
            "End its __call__ with return outputs, state.",
        ),
        80: (
            "the initial state of a module is missing",
            "eqx.nn.make_with_state takes the initial values out of the module and returns them "
            "beside it.",
            "Give both: nt.nn.equinox(module, state).",
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
        17: (
            "a mark where only a diagnostic may stand",
            "The function of tap_gradient runs on sampled steps only, and what a backward rule "
            "derives is no execution of the user's code: nothing there may decide a step.",
            "Use nt.diagnostic inside nt.tap_gradient; guard the forward value instead.",
        ),
        19: (
            "a mark where there is no step it could stop",
            "A guard, assert_finite or metric counts in a training step or in a pass. This code "
            "runs outside both, or is evaluated before the program exists.",
            "Move it into prepare, forward, loss or a metrics hook.",
        ),
        20: (
            "a mark is given no rank-0 number",
            "A count or value is one real number per execution. A bool says that something is "
            "wrong, not how often; an array has to be reduced first.",
            "Use nt.count_where(mask) for a mask, jnp.sum for counts, jnp.mean for values.",
        ),
        21: (
            "a mark in a branch or loop that vmap runs for every lane",
            "vmap of cond, switch or while_loop with a predicate per lane runs both branches, or "
            "finished lanes, for all of them: the mark would count what was not taken.",
            "Move the mark out, with the predicate as a mask: "
            "nt.guard(name, nt.count_where(mask & ...)).",
        ),
        22: (
            "metadata or a bound that is not fixed",
            "Metadata and bounds are part of the program: Python values, known while it is traced. "
            "split, stage, group and param are filled in by nitroc.",
            "Unroll the loop, so that the value is a Python number; guard a count_where instead of "
            "a traced bound.",
        ),
        23: (
            "a mark has no legal name",
            "Names become report words, series and globs: letters, digits and _ . / -, at most "
            "200 characters.",
            "Rename it; what varies belongs in metadata, as key=value.",
        ),
        24: (
            "one name means two things",
            "A metric and a diagnostic, or diagnostics with different reductions, can't be one "
            "series.",
            "Rename one of them.",
        ),
        25: (
            "a mark counts otherwise under the gradient",
            "Training runs the gradient's trace. A mark that it lacks, adds, or runs in another "
            "loop than the objective does would be counted wrongly: the forward rule of a "
            "custom_vjp, or the rule of a custom_jvp, has to hold the marks of its function once.",
            "Put the mark in the forward rule too (or call the function there), or take it out of "
            "the custom rule or the checkpointed loop.",
        ),
        26: (
            "a mark where executions can't be counted",
            "The functions that reduce, sort, scatter or select are applied an unspecified number "
            "of times, and so is a while condition.",
            "Move the mark out of the function; count over the whole array.",
        ),
    },
)
declare(
    "OPT",
    {
        1: (
            "a rule takes an unknown argument",
            "Before the `*` a rule takes `g`, `p`, `t` and its slots, found by name.",
            "Declare the name in `slots=`, or write it after the `*` with a default.",
        ),
        2: (
            "ambiguous: applied twice",
            "The rule declares learning_rate or weight_decay, which the framework applies too.",
            "Return the unscaled update and leave rate and decay to the framework.",
        ),
        3: (
            "a rule's keyword is neither a field nor structure",
            "Keyword-only arguments need a default: a float is a schedulable field, a bool, int or "
            "string is structure.",
            "Give the keyword such a default.",
        ),
        4: (
            "a rule's slots do not fit its function",
            "Each slot is an argument by its name and starts as nt.zeros, a number or f(p) of the "
            "leaf's shape.",
            "Make `slots=` and the function's arguments agree.",
        ),
        5: (
            "a rule returned the wrong number of results",
            "A rule returns the unscaled update, then the next value of every slot in order.",
            "Return exactly those.",
        ),
        6: (
            "a rule has no such keyword",
            "Only its keyword-only arguments can be set.",
            "Use one of the names listed.",
        ),
        7: (
            "a rule's keyword has another type",
            "Fields are numbers; structure keeps the type of its default.",
            "Pass a value of that type.",
        ),
        8: (
            "a rule does what a program cannot",
            "A rule is run on values of the program, which have arithmetic and the functions of "
            "nt.namespace(g) only: no truth value, no indexing, no numpy call.",
            "Use xp = nt.namespace(g), and xp.where for a condition.",
        ),
        9: (
            "a rule reduces a part of a leaf",
            "A rule knows a parameter as its elements, not by its axes: it reduces them all to one "
            "number, by sum mean max min any all count_nonzero var std linalg.vector_norm.",
            "Reduce the whole leaf with those, from xp = nt.namespace(g).",
        ),
        10: (
            "accum is below 1",
            "accum is the number of micro-batches of one optimizer step.",
            "Give 1 or more.",
        ),
        11: (
            "the clip threshold is no finite number above 0",
            "gradient_clip_norm is the largest global norm a gradient may have; 0 turns it off.",
            "Give a finite number, 0 for no clipping.",
        ),
        12: (
            "unknown policy of the finite guard",
            "on_nonfinite says what a step that is not finite does.",
            "Use one of the policies listed.",
        ),
        13: (
            "unknown decay anchor",
            "Decay pulls parameters toward its anchor.",
            "Use one of the anchors listed.",
        ),
        14: (
            "no such rule in the module",
            "The optimizer pass takes its rule from the module's rules.",
            "Use one of the rules listed.",
        ),
        40: (
            "the number of batches is no multiple of accum",
            "An optimizer step takes accum whole batches of one epoch.",
            "Change the batch size, the data or accum to one of the counts named.",
        ),
        41: (
            "the base learning rate is 0",
            "With every leaf frozen nothing can train, and a schedule's ratio to it is undefined.",
            "Give a learning rate above 0.",
        ),
        42: (
            "an optimizer setting is out of range",
            "Learning rates and decays are finite and not negative; hyperparameters are numbers.",
            "Correct the value at the place named.",
        ),
        43: (
            "optimizer is no rule",
            "The optimizer field or hook must give one of nt.rules or a function of nt.rule.",
            "Return a rule, as in nt.rules.Adam.",
        ),
    },
)
declare(
    "BUILD",
    {
        1: (
            "unknown pass",
            "A pipeline names its passes; this name is none of them.",
            "Use one of the passes listed.",
        ),
        2: (
            "a pass's option is unknown, missing or of another type",
            "The options of a pass are the fields of its class.",
            "Write the option as the message says.",
        ),
        3: (
            "the pipeline's text is malformed",
            "It is name{option=value,...}, joined by commas.",
            "Correct it at the place named.",
        ),
        4: (
            "a pass is out of order",
            "It needs what another pass makes.",
            "Put that pass before it.",
        ),
        5: (
            "the gradient was not imported",
            "differentiate calls the imported gradient of a function; the module has none.",
            "Import the gradient beside the function.",
        ),
        6: (
            "a pass left a wrong module",
            "The module is verified after every pass.",
            "This is a defect of the compiler: please report it with the message.",
        ),
        7: (
            "a stage's text does not read back",
            "With --check=roundtrip every stage is printed, read and compared.",
            "This is a defect of the compiler: please report it with the message.",
        ),
        8: (
            "an imported function's parameters are out of order",
            "Functions take params and state (or outputs), constants, Device leaves, seed, two "
            "counters, batch fields.",
            "Import the function in that order.",
        ),
        20: (
            "a program can't be written for the StableHLO version asked",
            "An op of it is newer than that version, or the emitted module is not valid.",
            "Choose another --compat, or avoid the op the message names.",
        ),
        21: (
            "unknown StableHLO version",
            "--compat takes max, current or M.m.p, within what this jaxlib can write.",
            "Leave --compat out: the default is the version of 12 weeks ago.",
        ),
        22: (
            "an imported function does not fit the program",
            "Its file is missing, has another signature, or brings a symbol that is taken.",
            "Build again from the experiment: functions and IR are from different builds.",
        ),
        23: (
            "a named op reached emission",
            "The pipeline was stopped before `expand`.",
            "Emit the module after its last pass.",
        ),
        24: (
            "a scalar does not fit one word of the packed scalars",
            "The argument holds f32, i32 and i1 only.",
            "Use one of those dtypes; arrays are inputs of role device.",
        ),
        25: (
            "unknown layout",
            "--layout takes auto, flat or leaves.",
            "Leave --layout out: the default is auto.",
        ),
        26: (
            "no such program",
            "The module does not hold a program of that name.",
            "Choose one of those the message lists.",
        ),
        27: (
            "the text of a function can't be read",
            "A functions/<digest>.mlir beside a dump is damaged or was written by another jaxlib.",
            "Dump the stages again with nitroc build --dump-ir.",
        ),
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
        80: (
            "not a Python file",
            "The experiment was named by a path that is no .py file.",
            "Name the file: nitroc build exp.py[:Class] -o bundle/.",
        ),
        81: (
            "which experiment",
            "The file declares no experiment, or several and none was named.",
            "Name one: exp.py:Class.",
        ),
        82: (
            "importing the experiment raised",
            "The file, or a module it imports, raised an exception when imported.",
            "Run the file with python and mend what it raises.",
        ),
        83: (
            "no source to carry",
            "The class was declared in a REPL or by exec, so there is no file for the bundle.",
            "Move the class to a file, or train it in memory.",
        ),
        84: (
            "a bundle without its experiment's Python",
            "The bundle was built from a dump, so it has no data hooks.",
            "Give the splits themselves: --data F.npz.",
        ),
        85: (
            "a field's value can't be given back",
            "The bundle was built with a value that JSON can't hold.",
            "Make it the field's default, or build and train in Python.",
        ),
        86: (
            "a GraphConst differs from the bundle's",
            "derive, or the file's default, gives a value that is not in the compiled programs.",
            "Build again with these data.",
        ),
        87: (
            "the stages can't be written",
            "--dump-ir names a directory that the file system refuses.",
            "Name a directory that can be written.",
        ),
        88: (
            "a dump is incomplete",
            "The .nir file, or a function it calls, is not there.",
            "Keep the stages and functions/ together, as --dump-ir wrote them.",
        ),
        89: (
            "no initial values",
            "The dump has no program init and no weights were given.",
            "Give them: --weights bundle/weights/init.safetensors.",
        ),
    },
)
declare(
    "SCHED",
    {
        40: (
            "a schedule's name is no optimizer field and no scalar Device field",
            "A schedule drives learning_rate, weight_decay, a float of the rule, or a Device "
            "scalar.",
            "Use one of the names listed.",
        ),
        41: (
            "a schedule's name means two things",
            "An optimizer field and a Device field have the same name.",
            'Qualify it: {"opt": {...}} or {"device": {...}}.',
        ),
        42: (
            "this can't be scheduled",
            "Structure, clipping and arrays are fixed while a run goes on.",
            "Schedule a scalar Device field instead.",
        ),
        43: (
            "a schedule of weight_decay beside a weight_decay method",
            "The curve would set every group's coefficient and the method would bind nowhere.",
            "Keep one of the two.",
        ),
        44: (
            "two schedules of one scalar",
            "The bare name and the qualified one mean the same scalar, and one of the curves would "
            "bind nowhere.",
            "Keep one of the two.",
        ),
    },
)

declare(
    "USAGE",
    {
        1: (
            "an unknown option or field",
            "No run option and no field of the experiment has this name.",
            "Use one of the names listed.",
        ),
        2: (
            "an option is out of range",
            "The value is not one the option can have; the message states the range.",
            "Give a value in the range.",
        ),
        3: (
            "an option this version does not have",
            "The option belongs to the language, and nothing here would act on it.",
            "Leave it at the value named.",
        ),
        4: (
            "the value of --set can't be read",
            "VALUE is read by the declared type: JSON for containers, none, bare words for text.",
            "Write a value of the type shown.",
        ),
        5: (
            "a baked value can't change when a bundle runs",
            "GraphConst fields and baked options are part of the compiled programs.",
            "Build again with the new value.",
        ),
        6: (
            "a field can't be set on the command line",
            "Its declared type is no scalar, so text does not say what value is meant.",
            "Annotate it with a scalar type, or give the value in Python.",
        ),
        7: (
            "an option that a bundle can't record",
            "resume and checkpoint belong to one run; loggers, checkpointers, stoppers and "
            "schedules are Python objects.",
            "Give it to the run, or write the object in the experiment.",
        ),
        30: (
            "no such command",
            "The first word after nitroc is no command.",
            "nitroc --help lists them.",
        ),
        31: (
            "a flag can't be understood",
            "A flag is unknown, misses its value, or has one of another type.",
            "Ask the command: nitroc COMMAND --help.",
        ),
        32: (
            "--set without a value",
            "--set takes NAME=VALUE.",
            "Write --set width=256.",
        ),
        33: ("unknown check", "--check knows roundtrip.", "Write --check roundtrip."),
        34: (
            "what to build",
            "Neither an experiment nor a dump was named, or both.",
            "Give exp.py, or --from FILE.nir.",
        ),
        35: (
            "a preset and an instance",
            "Nitro was given an instance and the name of a preset.",
            'Write Nitro(Cls, "name"), or Nitro(from_preset(Cls, "name")).',
        ),
        36: (
            "unknown platform",
            "--platform names none of cpu, cuda, rocm, tpu.",
            "Name one of them.",
        ),
        37: (
            "two things that exclude each other",
            "A flag was given that the other one has already decided.",
            "Leave one of them out.",
        ),
        38: (
            "unknown code",
            "explain was asked for a code that no package has.",
            "Copy the code from the error.",
        ),
        39: (
            "no such stage or program",
            "ir was asked for a stage or a program that is not there.",
            "Choose one of those the message lists.",
        ),
        40: (
            "the output can't be written",
            "The file system refused: a missing directory, no permission, no space.",
            "Name a file in a directory that can be written.",
        ),
        41: (
            "a flag that needs another",
            "The flag says nothing without the other one that the message names.",
            "Give both.",
        ),
    },
)

declare(
    "DATA",
    {
        10: (
            "the splits are no dict with train",
            "build_data returns a dict of splits: train, and any others.",
            'Return {"train": source, ...}.',
        ),
        11: (
            "there is no such split",
            "The experiment's data has no split of this name.",
            "Use one of those listed.",
        ),
        12: (
            "two splits have fields of different types or shapes",
            "Every split runs through programs of the train split's shapes.",
            "Give the field the same dtype and row shape in both splits.",
        ),
        13: (
            "a short last train batch",
            "The train program takes whole batches only; filler rows would change the gradient.",
            "Drop the last batch in the loader (drop_last=True), or choose another batch size.",
        ),
        90: (
            "not an npz of plain arrays",
            "The file is missing, damaged, or holds objects.",
            "Write it with numpy.savez(file, field=array).",
        ),
    },
)

declare(
    "RUN",
    {
        4: (
            "the experiment's own code raised",
            "A host hook, a schedule, a logger or a data source raised while a bundle was used.",
            "Fix the line that is named; the whole traceback is in the file that is named.",
        ),
        5: (
            "a defect of nitroc",
            "Something failed inside nitroc, with no line of the experiment involved.",
            "Please report it with the file that the message names.",
        ),
        6: (
            "a file could not be read or written",
            "The system refused: no space, no permission, a folder that went away.",
            "Make room or mend the path that the message names, then run again.",
        ),
    },
)
