//! Transformer architectures over libtorch: one a file, with weights (safetensors) and key-value cache.
