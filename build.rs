//! How a release build for Linux is linked: the functions that a server runs lie beside each other
//! (`function_layout.ld`, made by `benches/layout.py`), and the program lies at a fixed address, so that
//! fewer of its pages are mapped and none is written to set pointers. ARCHITECTURE.md says what it is worth.

use std::env;
use std::path::Path;

/// Linkers that do not read a script like that.
const OTHER_LINKERS: [&str; 4] = ["gold", "mold", "wild", "zig"];

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=function_layout.ld");
    let var = |name: &str| env::var(name).unwrap_or_default();
    if var("CARGO_CFG_TARGET_OS") != "linux" || var("PROFILE") != "release" {
        return;
    }
    let flags = var("CARGO_ENCODED_RUSTFLAGS");
    let linker = flags.clone() + &var("RUSTC_LINKER");
    if !OTHER_LINKERS.iter().any(|other| linker.contains(other)) {
        let script = Path::new(&var("CARGO_MANIFEST_DIR")).join("function_layout.ld");
        println!("cargo:rustc-link-arg-bins=-Wl,-T,{}", script.display());
    }
    // Who asks for a kind of address gets it. It is the linker that is told, not the compiler that calls it:
    // that one would take it for a wish for shared libraries where all are to be in the program.
    let own_kind = flags.contains("relocation-model")
        || var("CARGO_CFG_TARGET_FEATURE").contains("crt-static");
    if var("CARGO_CFG_TARGET_ENV") == "gnu" && !own_kind {
        println!("cargo:rustc-link-arg-bins=-Wl,-no-pie");
    }
}
