"""Step time, memory and utilisation of training jobs: alone, together, frozen; on a CPU core or a GPU.

`measure.run.measure` carries out one `RunRequest` and answers one JSON-able record. Every member trains in its own
process; nothing here imports torch before a member starts.
"""
