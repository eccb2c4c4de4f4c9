//! Build script of the packages that do not use libtorch: beside packages that do, `r1-base` has
//! the feature `tch`, and the tests of all packages above it load libtorch.

fn main() {
    println!("cargo:rerun-if-env-changed=LIBTORCH");
    if let Ok(libtorch) = std::env::var("LIBTORCH") {
        println!("cargo:rustc-link-arg=-Wl,-rpath,{libtorch}/lib");
    }
}
