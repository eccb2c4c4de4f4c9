//! The device of a model and the type of its numbers, as settings.

use crate::schema::choices;

choices! {
    /// The device of a model: the GPU if there is one, or the one named.
    pub enum DeviceChoice {
        Auto = "auto",
        Cpu = "cpu",
        Cuda = "cuda",
    }
}

choices! {
    /// Type of the weights and of the computation: f32 on the CPU and bf16 on CUDA, or the one
    /// named.
    pub enum Dtype {
        Auto = "auto",
        F32 = "f32",
        Bf16 = "bf16",
    }
}
