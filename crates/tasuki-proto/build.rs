//! Compiles the `.proto` files with a Rust library, so `protoc` does not have to be installed.

use std::error::Error;
use std::path::PathBuf;

use prost::Message as _;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=proto");
    let descriptors = protox::compile(["proto/tasuki/v1/worker.proto"], ["proto"])?;
    let out = PathBuf::from(std::env::var_os("OUT_DIR").ok_or("cargo sets OUT_DIR")?);
    std::fs::write(out.join("descriptors.bin"), descriptors.encode_to_vec())?;
    tonic_prost_build::configure()
        // These contain lease tokens, which must not be printed; `src/lib.rs` implements Debug without them.
        .skip_debug([".tasuki.v1.StartJobRequest", ".tasuki.v1.LeasedRun"])
        .compile_fds(descriptors)?;
    Ok(())
}
