"""Step time, memory and utilisation of training jobs: alone, together, frozen; on a CPU core or a GPU.

`measure.run.measure` executes one `RunRequest` and returns one JSON-serialisable record. Every member trains in its
own process; the measuring process itself does not import torch.
"""
