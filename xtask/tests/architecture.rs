//! The architecture as a test: which crate and which folder may import which, and the reason of each rule.
//!
//! A new arrow fails here. If the arrow is right, add it with its reason; mostly the code belongs elsewhere.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// A crate of ours, the crates of ours that it may depend on, and the reason.
const CRATES: [(&str, &[&str], &str); 9] = [
    (
        "tasuki-core",
        &[],
        "rules and decisions are plain types and pure functions; everything may use them",
    ),
    ("tasuki-proto", &[], "generated gRPC messages; a change of our code never rebuilds them"),
    (
        "tasuki-store",
        &["tasuki-core"],
        "the store keeps the promises of the core and knows no loops, processes or servers",
    ),
    (
        "tasuki",
        &["tasuki-core", "tasuki-store"],
        "the embedded library; other processes reach it through traits that it defines",
    ),
    (
        "tasuki-cluster",
        &["tasuki", "tasuki-core", "tasuki-proto", "tasuki-store"],
        "implements the node's traits on Redis and gRPC",
    ),
    (
        "tasuki-web",
        &["tasuki", "tasuki-core", "tasuki-store"],
        "REST is a thin layer over Operator",
    ),
    (
        "tasuki-cli",
        &["tasuki", "tasuki-cluster", "tasuki-core", "tasuki-store", "tasuki-web"],
        "the binary is the only place that puts all parts together",
    ),
    (
        "cluster-kit",
        &["tasuki-core", "tasuki-store"],
        "tests see a cluster from outside: its processes and its database",
    ),
    ("xtask", &["cluster-kit"], "development commands"),
];

/// Everything that the core may use from other people.
const CORE_LIBRARIES: (&[&str], &str) = (
    &["croner", "jiff", "serde", "serde_json", "thiserror", "uuid"],
    "no I/O, no async, no clock and no randomness in the core: a decision made twice gives the same result",
);

/// A text that may appear only in the named places, and the reason. Tests and examples are not checked.
const HOMES: [(&str, &[&str], &str); 14] = [
    (
        "sqlx::",
        &[
            "crates/tasuki-store/src/db",
            "crates/tasuki-store/src/error.rs",
            "crates/tasuki-store/src/cluster/notify.rs",
            "crates/tasuki-cli/src/bench/baseline",
        ],
        "one folder knows the database drivers; a baseline must not go through the store that it is compared with",
    ),
    ("Dialect", &["crates/tasuki-store/src"], "the SQL dialect is not visible above the store"),
    (
        "::redis::",
        &["crates/tasuki-cluster/src/redis", "tests/cluster/src"],
        "one folder knows Redis",
    ),
    (
        "tonic::",
        &["crates/tasuki-cluster/src", "crates/tasuki-proto/src"],
        "gRPC stays in the crate that carries calls",
    ),
    ("rustls::", &["crates/tasuki-cluster/src"], "TLS stays in the crate that carries calls"),
    ("axum::", &["crates/tasuki-web/src"], "HTTP and JSON shapes stay in the web crate"),
    ("clap::", &["crates/tasuki-cli/src", "xtask/src"], "arguments stay in the command line"),
    (
        "std::fs",
        &[
            "crates/tasuki/src",
            "crates/tasuki-cluster/src",
            "crates/tasuki-cli/src",
            "tests/cluster/src",
            "xtask/src",
            // Only in a mutation test, which passes the changed SQL texts in a file.
            "crates/tasuki-store/src/db/replace_sql_with_mutants.rs",
        ],
        "the core and the store do no file I/O",
    ),
    (
        "std::process",
        &[
            "crates/tasuki/src/node",
            "crates/tasuki/src/spawner",
            "crates/tasuki-cli/src",
            "tests/cluster/src",
            "xtask/src",
        ],
        "only a node, its spawner and the tools start or identify processes",
    ),
    (
        "std::net",
        &[
            "crates/tasuki/src/spawner",
            "crates/tasuki-cluster/src",
            "crates/tasuki-web/src",
            "crates/tasuki-cli/src",
            "tests/cluster/src",
        ],
        "the core, the store and the node open no network sockets; the spawner and its worker share a socket pair",
    ),
    (
        "SystemTime::now",
        &[
            "crates/tasuki/src/spawner/exit_journal.rs",
            "crates/tasuki-cli/src",
            "tests/cluster/src",
        ],
        "guards use the database's clock; the machine's clock only dates records and benches",
    ),
    ("Zoned::now", &[], "a decision gets its instant from the caller"),
    (
        "getrandom::",
        &["crates/tasuki/src", "crates/tasuki-cluster/src", "crates/tasuki-web/src"],
        "randomness enters at the node and is passed down",
    ),
    (
        "async fn",
        &[
            "crates/tasuki-store/src",
            "crates/tasuki/src",
            "crates/tasuki-cluster/src",
            "crates/tasuki-web/src",
            "crates/tasuki-cli/src",
            "tests/cluster/src",
            "xtask/src",
        ],
        "the core cannot wait",
    ),
];

/// The modules of a crate with the other modules of that crate that each of them may import.
struct Folders {
    /// Source folder of the crate, or of a module in it.
    source: &'static str,
    /// Path of that module inside the crate; empty for the crate itself.
    module: &'static [&'static str],
    /// Module, modules that it may import, and the reason.
    rules: &'static [(&'static str, &'static [&'static str], &'static str)],
}

include!("architecture/folders.rs");

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").canonicalize().expect("the workspace exists")
}

/// Dependencies of a crate, without those of its tests.
fn dependencies(manifest: &Path) -> BTreeSet<String> {
    let text = std::fs::read_to_string(manifest).expect("each crate has a manifest");
    let section = text.split("\n[").find(|section| section.starts_with("dependencies]"));
    let lines = section.unwrap_or_default().lines().skip(1);
    let names = lines.filter_map(|line| line.split(['.', '=', ' ']).next());
    names.filter(|name| !name.is_empty() && !name.starts_with('#')).map(str::to_owned).collect()
}

fn manifest(name: &str) -> PathBuf {
    match name {
        "cluster-kit" => root().join("tests/cluster/Cargo.toml"),
        "xtask" => root().join("xtask/Cargo.toml"),
        name => root().join("crates").join(name).join("Cargo.toml"),
    }
}

/// Rust files below a folder, or the file itself.
fn rust_files(path: &Path) -> Vec<PathBuf> {
    if path.is_file() {
        return vec![path.to_owned()];
    }
    let entries = path.read_dir().unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let mut files = Vec::new();
    for entry in entries.map(|entry| entry.expect("the folder can be read").path()) {
        if entry.is_dir() {
            files.extend(rust_files(&entry));
        } else if entry.extension().is_some_and(|extension| extension == "rs") {
            files.push(entry);
        }
    }
    files
}

/// The code of a file without comments and without the unit tests at its end. A module of unit tests in a file of its own has none.
fn code(file: &Path) -> String {
    let text = std::fs::read_to_string(file).expect("a source file is text");
    let is_tests = file.file_stem().is_some_and(|stem| stem == "tests");
    if is_tests || is_test_only(file) {
        return String::new();
    }
    let end = text
        .find("\n#[cfg(test)]\nmod tests")
        .or_else(|| text.find("\n#[cfg(test)]\npub(crate) mod tests"));
    let code = &text[..end.unwrap_or(text.len())];
    code.lines()
        .map(|line| line.split("//").next().unwrap_or_default())
        .collect::<Vec<_>>()
        .join("\n")
}

/// Folders that are compiled for tests only.
fn is_test_only(file: &Path) -> bool {
    let path = file.to_string_lossy().replace('\\', "/");
    TEST_ONLY.iter().any(|folder| path.contains(folder))
}

#[test]
fn crates_depend_only_on_the_crates_below_them() {
    let ours: BTreeSet<&str> = CRATES.iter().map(|(name, ..)| *name).collect();
    let mut wrong = Vec::new();
    for (name, allowed, reason) in CRATES {
        let found = dependencies(&manifest(name));
        for other in found.iter().filter(|other| ours.contains(other.as_str())) {
            if !allowed.contains(&other.as_str()) {
                wrong.push(format!("{name} must not depend on {other}: {reason}"));
            }
        }
        for unused in allowed.iter().filter(|other| !found.contains(**other)) {
            wrong.push(format!("{name} no longer depends on {unused}: remove it from this list"));
        }
    }
    let folders = root().join("crates").read_dir().expect("there are crates");
    for folder in folders.map(|entry| entry.expect("the folder can be read").file_name()) {
        let name = folder.into_string().expect("crate names are ASCII");
        if !ours.contains(name.as_str()) {
            wrong.push(format!("the crate {name} has no rule here"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn the_core_uses_only_libraries_without_side_effects() {
    let (allowed, reason) = CORE_LIBRARIES;
    let found = dependencies(&manifest("tasuki-core"));
    let wrong: Vec<_> = found.iter().filter(|name| !allowed.contains(&name.as_str())).collect();
    assert!(wrong.is_empty(), "the core must not use {wrong:?}: {reason}");
}

#[test]
fn each_technology_has_one_home() {
    let mut wrong = Vec::new();
    let mut files = rust_files(&root().join("xtask/src"));
    for folder in ["crates", "tests"] {
        for entry in root().join(folder).read_dir().expect("the folder exists") {
            files.extend(rust_files(&entry.expect("the folder can be read").path().join("src")));
        }
    }
    for file in files {
        let name = file
            .strip_prefix(root())
            .expect("files are below the root")
            .to_string_lossy()
            .into_owned();
        let code = code(&file);
        for (text, homes, reason) in HOMES {
            let at_home =
                homes.iter().any(|home| name == *home || name.starts_with(&format!("{home}/")));
            if !at_home && has_word(&code, text) {
                wrong.push(format!("{name} must not use `{text}`: {reason}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Whether a text occurs that is not the end of a longer name.
fn has_word(code: &str, text: &str) -> bool {
    let is_name = |c: char| c.is_alphanumeric() || c == '_';
    code.match_indices(text).any(|(at, _)| {
        let before = code[..at].chars().next_back();
        let after = code[at + text.len()..].chars().next();
        let ends_a_name = !text.ends_with(is_name) || !after.is_some_and(is_name);
        !before.is_some_and(is_name) && ends_a_name
    })
}

#[test]
fn folders_import_only_what_their_rules_allow() {
    let mut wrong = Vec::new();
    for folders in FOLDERS {
        let source = root().join(folders.source);
        let arrows = arrows(&source, folders.module);
        for (from, to) in &arrows {
            match folders.rules.iter().find(|(module, ..)| module == from) {
                None => {
                    wrong.push(format!("{}: the module {from} has no rule here", folders.source));
                }
                Some((_, allowed, reason)) => {
                    for other in to.iter().filter(|other| !allowed.contains(&other.as_str())) {
                        wrong.push(format!(
                            "{}: {from} must not import {other}: {reason}",
                            folders.source
                        ));
                    }
                }
            }
        }
        for (module, allowed, _) in folders.rules {
            let found = arrows.get(*module);
            for unused in
                allowed.iter().filter(|other| !found.is_some_and(|found| found.contains(**other)))
            {
                wrong.push(format!(
                    "{}: {module} no longer imports {unused}: remove it from this list",
                    folders.source
                ));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// For each module directly below a folder, the sibling modules that its code names.
fn arrows(source: &Path, module: &[&str]) -> BTreeMap<String, BTreeSet<String>> {
    let siblings: BTreeSet<String> = source
        .read_dir()
        .expect("the folder exists")
        .map(|entry| entry.expect("the folder can be read").path())
        .filter_map(|path| Some(path.file_stem()?.to_str()?.to_owned()))
        .filter(|name| !["lib", "main", "mod"].contains(&name.as_str()))
        .collect();
    let exported = exports(source);
    let mut arrows: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for file in rust_files(source) {
        let relative =
            file.strip_prefix(source).expect("files are below the folder").with_extension("");
        let from = relative
            .components()
            .next()
            .map(|first| first.as_os_str().to_string_lossy().into_owned());
        let Some(from) = from.filter(|from| siblings.contains(from)) else { continue };
        let mut here: Vec<String> = module.iter().map(ToString::to_string).collect();
        here.extend(
            relative.components().map(|part| part.as_os_str().to_string_lossy().into_owned()),
        );
        if here.last().is_some_and(|last| last == "mod") {
            here.pop();
        }
        for path in paths(&code(&file), &here) {
            let Some(rest) = path.strip_prefix(module_path(module).as_slice()) else { continue };
            let Some(first) = rest.first() else { continue };
            let to = exported.get(first).unwrap_or(first);
            if *to != from && siblings.contains(to) {
                arrows.entry(from.clone()).or_default().insert(to.clone());
            }
        }
    }
    arrows
}

fn module_path(module: &[&str]) -> Vec<String> {
    module.iter().map(ToString::to_string).collect()
}

/// The names that the folder's own module exports, with the sibling module of each.
fn exports(source: &Path) -> BTreeMap<String, String> {
    let own = ["lib.rs", "main.rs", "mod.rs"]
        .into_iter()
        .map(|name| source.join(name))
        .find(|file| file.exists());
    let text = own.map(|file| code(&file)).unwrap_or_default();
    let mut exports = BTreeMap::new();
    for statement in text.split("pub use ").skip(1).chain(text.split("pub(crate) use ").skip(1)) {
        let tree = statement.split(';').next().unwrap_or_default();
        for path in leaves(tree) {
            if let (Some(first), Some(last)) = (path.first(), path.last()) {
                exports.insert(last.clone(), first.clone());
            }
        }
    }
    exports
}

/// All paths in code that begin with `crate::` or `super::`, as paths from the crate's root.
fn paths(code: &str, here: &[String]) -> Vec<Vec<String>> {
    let mut found = Vec::new();
    for start in ["crate::", "super::"] {
        for (at, _) in code.match_indices(start) {
            let before = code[..at].chars().next_back();
            if before.is_some_and(|c| c.is_alphanumeric() || c == '_' || c == ':' || c == '$') {
                continue;
            }
            for path in leaves(path_at(&code[at..])) {
                let supers = path.iter().take_while(|part| *part == "super").count();
                let rest = path[supers.max(1).min(path.len())..].to_vec();
                let base = match supers {
                    0 => Vec::new(),
                    supers => here[..here.len().saturating_sub(supers)].to_vec(),
                };
                found.push([base, rest].concat());
            }
        }
    }
    found
}

/// The path at the beginning of a text, with its braces if it ends in a list.
fn path_at(text: &str) -> &str {
    let mut depth = 0;
    for (at, c) in text.char_indices() {
        match c {
            '{' if text[..at].ends_with("::") || depth > 0 => depth += 1,
            '}' if depth > 1 => depth -= 1,
            '}' if depth == 1 => return &text[..=at],
            c if depth > 0 || c.is_alphanumeric() || c == '_' || c == ':' => {}
            _ => return &text[..at],
        }
    }
    text
}

/// The single paths of a `use` tree.
fn leaves(tree: &str) -> Vec<Vec<String>> {
    let tree = tree.trim();
    if let Some(open) = tree.find('{') {
        let prefix = split_path(&tree[..open]);
        let inner = tree[open + 1..].trim_end().strip_suffix('}').unwrap_or(&tree[open + 1..]);
        let mut all = Vec::new();
        for part in split_list(inner) {
            for leaf in leaves(part) {
                all.push([prefix.clone(), leaf].concat());
            }
        }
        return all;
    }
    let path = tree.split(" as ").next().unwrap_or_default();
    vec![split_path(path)]
}

fn split_path(path: &str) -> Vec<String> {
    path.split("::").map(str::trim).filter(|part| !part.is_empty()).map(str::to_owned).collect()
}

/// The parts of a list that is separated by commas outside of braces.
fn split_list(list: &str) -> Vec<&str> {
    let (mut parts, mut depth, mut from) = (Vec::new(), 0, 0);
    for (at, c) in list.char_indices() {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(&list[from..at]);
                from = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&list[from..]);
    parts.into_iter().filter(|part| !part.trim().is_empty()).collect()
}

#[test]
fn the_reader_of_imports_finds_nested_and_relative_paths() {
    let here: Vec<String> = ["node", "worker", "claims"].map(str::to_owned).to_vec();
    let code = "use crate::{Error, run::{self, Run as R}};\nlet x = super::super::leader::plan();";
    let found: Vec<String> = paths(code, &here).iter().map(|path| path.join("::")).collect();
    assert_eq!(found, ["Error", "run::self", "run::Run", "node::leader::plan"]);
}
