fn main() {
    let libtorch = std::env::var("DEP_R1_LIBTORCH").expect("r1 was built without LIBTORCH");
    println!("cargo:rustc-link-arg=-Wl,-rpath,{libtorch}/lib");
}
