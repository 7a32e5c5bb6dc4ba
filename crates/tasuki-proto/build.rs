//! Compiles the messages. Nothing has to be installed for it: the compiler is a library.

use std::error::Error;
use std::path::PathBuf;

use prost::Message as _;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=proto");
    let descriptors = protox::compile(["proto/tasuki/v1/worker.proto"], ["proto"])?;
    let out = PathBuf::from(std::env::var_os("OUT_DIR").ok_or("cargo sets OUT_DIR")?);
    std::fs::write(out.join("descriptors.bin"), descriptors.encode_to_vec())?;
    tonic_prost_build::configure()
        // These carry lease tokens, which are never printed.
        .skip_debug([".tasuki.v1.StartJobRequest", ".tasuki.v1.CarriedRun"])
        .compile_fds(descriptors)?;
    Ok(())
}
