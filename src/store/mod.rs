//! Run directory, trajectories in Parquet, checkpoints. The only module that knows parquet.
