//! What a job wrote into its result file, read with care: a job may have put anything there.

use std::fs;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::Value;

use super::attempt::Told;

/// How long result files may take to be read.
const PATIENCE: Duration = Duration::from_secs(10);
/// The longest result file that is read.
const LONGEST_RESULT: u64 = 256 << 10;

/// What several jobs wrote, in their order. Not by the caller's thread: there may be what never answers.
pub(crate) async fn read_all(paths: Vec<PathBuf>) -> Vec<Told> {
    let together = paths.clone();
    let read = move || together.iter().map(|path| read_result(path)).collect();
    let read = tokio::task::spawn_blocking(read);
    if let Ok(Ok(told)) = tokio::time::timeout(PATIENCE, read).await {
        return told;
    }
    // One of them keeps the others waiting: each for itself.
    let mut all = tokio::task::JoinSet::new();
    for (index, path) in paths.iter().cloned().enumerate() {
        all.spawn(async move {
            let read = tokio::task::spawn_blocking(move || read_result(&path));
            (index, tokio::time::timeout(PATIENCE, read).await)
        });
    }
    let mut told = vec![problem("it could not be read in time"); paths.len()];
    while let Some(one) = all.join_next().await {
        if let Ok((index, Ok(Ok(read)))) = one {
            told[index] = read;
        }
    }
    told
}

/// What a job wrote into its result file, if it did.
pub(crate) fn read_result(path: &Path) -> Told {
    let text = match read_file(path) {
        Ok(None) => return Told::default(),
        Ok(Some(text)) if text.len() as u64 > LONGEST_RESULT => {
            return problem("it is longer than 262144 bytes");
        }
        Ok(Some(text)) => text,
        Err(error) => return problem(&error.to_string()),
    };
    match serde_json::from_str(&text) {
        Ok(Value::Object(told)) => told_in(&told),
        Ok(_) => problem("it is not a JSON object"),
        Err(error) => problem(&format!("it is not JSON: {error}")),
    }
}

/// A file that a job may have written, and nothing else that it may have put there. `None`: there is none.
fn read_file(path: &Path) -> io::Result<Option<String>> {
    use rustix::fs::{Mode, OFlags};
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = match rustix::fs::open(path, flags, Mode::empty()) {
        Ok(file) => fs::File::from(file),
        Err(rustix::io::Errno::NOENT) => return Ok(None),
        Err(rustix::io::Errno::LOOP) => return Err(io::Error::other("it is not a file")),
        Err(error) => return Err(error.into()),
    };
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("it is not a file"));
    }
    let mut text = String::new();
    file.take(LONGEST_RESULT + 1).read_to_string(&mut text)?;
    Ok(Some(text))
}

fn problem(what: &str) -> Told {
    Told { problem: Some(what.to_owned()), ..Told::default() }
}

fn told_in(file: &serde_json::Map<String, Value>) -> Told {
    let mut told = Told::default();
    for (name, value) in file {
        let understood = match (name.as_str(), value) {
            (_, Value::Null) => true,
            ("result", value) => {
                told.result = Some(value.clone());
                true
            }
            ("progress", value) => {
                told.progress = Some(value.clone());
                true
            }
            ("rows_affected", value) => {
                told.rows_affected = value.as_i64();
                told.rows_affected.is_some()
            }
            ("error_code", value) => {
                told.error_code = value.as_str().and_then(|code| code.parse().ok());
                told.error_code.is_some()
            }
            ("log_ref", Value::String(text)) if text.len() <= 1_000 && !text.contains('\0') => {
                told.log_ref = Some(text.clone());
                true
            }
            _ => false,
        };
        if !understood {
            told.problem.get_or_insert_with(|| format!("{name:?} is not understood"));
        }
    }
    told
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_result_file_is_read_with_care() {
        let told = |value: Value| told_in(value.as_object().unwrap());
        let good = told(
            json!({"result": {"n": 1}, "rows_affected": 3, "error_code": "NO_DATA", "log_ref": "https://x", "progress": 0.5}),
        );
        assert_eq!(good.result, Some(json!({"n": 1})));
        assert_eq!((good.rows_affected, good.problem), (Some(3), None));
        assert_eq!(good.error_code.unwrap().as_str(), "NO_DATA");
        let odd = told(json!({"rows_affected": "many", "result": null}));
        assert_eq!(odd.problem.as_deref(), Some("\"rows_affected\" is not understood"));
        assert_eq!(
            told(json!({"colour": 1})).problem.as_deref(),
            Some("\"colour\" is not understood")
        );
        assert_eq!(read_result(Path::new("/nowhere/at/all")), Told::default());
    }

    /// A job may put anything where its result is looked for.
    #[test]
    fn only_a_file_is_read_as_a_result() {
        let folder = std::env::temp_dir().join(format!("tasuki_result_{}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(folder.join("directory")).unwrap();
        let (link, pipe) = (folder.join("link"), folder.join("pipe"));
        std::os::unix::fs::symlink("/dev/zero", &link).unwrap();
        let mode = rustix::fs::Mode::RWXU;
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, mode, 0).unwrap();
        for path in [folder.join("directory"), link, pipe] {
            assert_eq!(read_result(&path).problem.as_deref(), Some("it is not a file"), "{path:?}");
        }
        let (long, odd) = (folder.join("long"), folder.join("odd"));
        fs::write(&long, "x".repeat(LONGEST_RESULT as usize + 1)).unwrap();
        assert_eq!(read_result(&long).problem.unwrap(), "it is longer than 262144 bytes");
        fs::write(&odd, b"\xff").unwrap();
        assert!(read_result(&odd).problem.unwrap().contains("UTF-8"));
        fs::remove_dir_all(folder).unwrap();
    }
}
