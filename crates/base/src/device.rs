//! The device of a model, as a setting.

use crate::schema::choices;

choices! {
    /// The device of a model: the GPU if there is one, or the one named.
    pub enum DeviceChoice {
        Auto = "auto",
        Cpu = "cpu",
        Cuda = "cuda",
    }
}
