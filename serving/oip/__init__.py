"""Open Inference Protocol v2 (KServe): the predictor as a model of tensors."""
