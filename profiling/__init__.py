"""Models into computation graphs, GPUs into their types, and jobs into measurements."""
