//! The copy of the working tree in which mutants are built.

use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Copies the tracked and the new files of the repository, and removes all others from the copy. Files with the same
/// contents are not written, so that cargo does not build them again.
pub(super) fn copy(root: &Path, tree: &Path) -> Result<(), String> {
    let files = list_files(root)?;
    for file in &files {
        copy_file(&root.join(file), &tree.join(file))?;
    }
    remove_others(tree, tree, &files)
}

/// Hashes the names and the contents of all files of these crates.
pub(super) fn hash_crates(tree: &Path, crates: &[&str]) -> Result<u64, String> {
    let mut hasher = DefaultHasher::new();
    for name in crates {
        hash_folder(&tree.join("crates").join(name), &mut hasher)?;
    }
    Ok(hasher.finish())
}

fn hash_folder(folder: &Path, hasher: &mut DefaultHasher) -> Result<(), String> {
    let describe = |error: std::io::Error| format!("{}: {error}", folder.display());
    let entries = std::fs::read_dir(folder).map_err(describe)?;
    let paths: Result<BTreeSet<PathBuf>, _> =
        entries.map(|entry| entry.map(|entry| entry.path())).collect();
    for path in paths.map_err(describe)? {
        if path.is_dir() {
            hash_folder(&path, hasher)?;
        } else {
            path.hash(hasher);
            std::fs::read(&path).map_err(describe)?.hash(hasher);
        }
    }
    Ok(())
}

/// Lists the files that git knows or would add, without those that were deleted.
fn list_files(root: &Path) -> Result<BTreeSet<PathBuf>, String> {
    let output = Command::new("git")
        .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
        .current_dir(root)
        .output()
        .map_err(|error| format!("git: {error}"))?;
    if !output.status.success() {
        return Err(format!("git ls-files: {}", String::from_utf8_lossy(&output.stderr).trim()));
    }
    let names =
        String::from_utf8(output.stdout).map_err(|error| format!("git ls-files: {error}"))?;
    let files = names.split_terminator('\0').map(PathBuf::from);
    Ok(files.filter(|file| root.join(file).is_file()).collect())
}

fn copy_file(from: &Path, to: &Path) -> Result<(), String> {
    let describe = |error: std::io::Error| format!("{}: {error}", to.display());
    let contents = std::fs::read(from).map_err(|error| format!("{}: {error}", from.display()))?;
    if std::fs::read(to).is_ok_and(|existing| existing == contents) {
        return Ok(());
    }
    if let Some(folder) = to.parent() {
        std::fs::create_dir_all(folder).map_err(describe)?;
    }
    // With the permissions, because some files are scripts.
    std::fs::copy(from, to).map(drop).map_err(describe)
}

fn remove_others(folder: &Path, tree: &Path, files: &BTreeSet<PathBuf>) -> Result<(), String> {
    let describe = |error: std::io::Error| format!("{}: {error}", folder.display());
    for entry in std::fs::read_dir(folder).map_err(describe)? {
        let path = entry.map_err(describe)?.path();
        let is_listed = path.strip_prefix(tree).is_ok_and(|path| files.contains(path));
        if path.is_dir() && !path.is_symlink() {
            remove_others(&path, tree, files)?;
        } else if !is_listed {
            std::fs::remove_file(&path).map_err(describe)?;
        }
    }
    Ok(())
}
