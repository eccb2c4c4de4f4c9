//! The small C++ file over libtorch for what tch does not bind, and its safe Rust face.

/// The version of the libtorch that r1 was built against, such as `2.11.0`.
pub fn libtorch_version() -> &'static str {
    env!("R1_LIBTORCH_VERSION")
}

/// The device to compute on. `auto` takes CUDA when this libtorch has it.
pub fn device(choice: crate::config::DeviceChoice) -> crate::Result<tch::Device> {
    use crate::config::DeviceChoice;
    match choice {
        DeviceChoice::Cpu => Ok(tch::Device::Cpu),
        DeviceChoice::Auto => Ok(tch::Device::cuda_if_available()),
        DeviceChoice::Cuda if tch::Cuda::is_available() => Ok(tch::Device::Cuda(0)),
        DeviceChoice::Cuda => {
            Err(crate::Error::new(crate::Kind::Device, "no CUDA device was found").hint("use policy.device=cpu"))
        }
    }
}

/// How many CPU threads arithmetic uses; libtorch's default is one a core.
pub fn set_threads(threads: usize) {
    tch::set_num_threads(i32::try_from(threads).unwrap_or(i32::MAX));
}
