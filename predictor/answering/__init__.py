"""From a fitted predictor to answers: numpy inference, job table, intervals, reasons."""
