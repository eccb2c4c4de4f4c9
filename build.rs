//! Links against the libtorch that `LIBTORCH` names and writes its place into the binary (rpath).

fn main() {
    println!("cargo:rerun-if-env-changed=LIBTORCH");
    let Ok(libtorch) = std::env::var("LIBTORCH") else {
        println!("cargo:warning=LIBTORCH is not set; run `just setup`, or build with `just build`");
        return;
    };
    println!("cargo:rustc-link-arg=-Wl,-rpath,{libtorch}/lib");
}
