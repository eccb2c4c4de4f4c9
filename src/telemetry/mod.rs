//! Metric names, progress bars, JSONL and TensorBoard.
