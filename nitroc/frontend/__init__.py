"""From an experiment to imported functions: the only place where JAX traces.

fields, metadata, experiment   declaring: markers, docs, the base class
options, settings              run options, `--set`, presets
hooks, routing, batches        signatures, which fields each hook is handed, schemas
device, values, view           converted values, and what traced hooks see
model, optimizer, schedules    `build_model`, the rule and its floats, what drives which slot
setup, report, binding         all of it in order, and the binding report
groups, keys, trace, importer  trees to groups, hooks to functions of the dialect
"""
