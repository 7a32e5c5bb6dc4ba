//! Reads the result files of commands. It reads defensively, because a command may have written or created anything
//! there.

use std::fs;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::Value;

use super::attempt_input_and_result::ResultFile;

/// How long reading a batch of result files may take.
const READ_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum size of a result file in bytes.
const MAX_RESULT_BYTES: u64 = 256 << 10;

/// Reads several result files, in the given order. It uses a blocking thread, because a read may hang (for example on a
/// network file system).
pub(crate) async fn read_result_files(paths: Vec<PathBuf>) -> Vec<ResultFile> {
    let batch = paths.clone();
    let read = move || batch.iter().map(|path| read_result_file(path)).collect();
    let read = tokio::task::spawn_blocking(read);
    if let Ok(Ok(results)) = tokio::time::timeout(READ_TIMEOUT, read).await {
        return results;
    }
    // One file blocks the others: read each one in a thread of its own.
    let mut all = tokio::task::JoinSet::new();
    for (index, path) in paths.iter().cloned().enumerate() {
        all.spawn(async move {
            let read = tokio::task::spawn_blocking(move || read_result_file(&path));
            (index, tokio::time::timeout(READ_TIMEOUT, read).await)
        });
    }
    let mut results = vec![with_problem("could not be read in time"); paths.len()];
    while let Some(finished) = all.join_next().await {
        if let Ok((index, Ok(Ok(read)))) = finished {
            results[index] = read;
        }
    }
    results
}

/// Reads one result file. Without a file, the result is empty.
pub(crate) fn read_result_file(path: &Path) -> ResultFile {
    let text = match read_file(path) {
        Ok(None) => return ResultFile::default(),
        Ok(Some(text)) if text.len() as u64 > MAX_RESULT_BYTES => {
            return with_problem("longer than 262144 bytes");
        }
        Ok(Some(text)) => text,
        Err(error) => return with_problem(&error.to_string()),
    };
    match serde_json::from_str(&text) {
        Ok(Value::Object(fields)) => parse_fields(&fields),
        Ok(_) => with_problem("not a JSON object"),
        Err(error) => with_problem(&format!("not JSON: {error}")),
    }
}

/// Reads a regular file; refuses symbolic links, pipes, directories and devices. `None`: there is no file.
fn read_file(path: &Path) -> io::Result<Option<String>> {
    use rustix::fs::{Mode, OFlags};
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = match rustix::fs::open(path, flags, Mode::empty()) {
        Ok(file) => fs::File::from(file),
        Err(rustix::io::Errno::NOENT) => return Ok(None),
        Err(rustix::io::Errno::LOOP) => return Err(io::Error::other("not a regular file")),
        Err(error) => return Err(error.into()),
    };
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("not a regular file"));
    }
    let mut text = String::new();
    file.take(MAX_RESULT_BYTES + 1).read_to_string(&mut text)?;
    Ok(Some(text))
}

fn with_problem(what: &str) -> ResultFile {
    ResultFile { problem: Some(what.to_owned()), ..ResultFile::default() }
}

fn parse_fields(file: &serde_json::Map<String, Value>) -> ResultFile {
    let mut result_file = ResultFile::default();
    for (name, value) in file {
        let is_valid = match (name.as_str(), value) {
            (_, Value::Null) => true,
            ("result", value) => {
                result_file.result = Some(value.clone());
                true
            }
            ("progress", value) => {
                result_file.progress = Some(value.clone());
                true
            }
            ("rows_affected", value) => {
                result_file.rows_affected = value.as_i64();
                result_file.rows_affected.is_some()
            }
            ("error_code", value) => {
                result_file.error_code = value.as_str().and_then(|code| code.parse().ok());
                result_file.error_code.is_some()
            }
            ("log_ref", Value::String(text)) if text.len() <= 1_000 && !text.contains('\0') => {
                result_file.log_ref = Some(text.clone());
                true
            }
            _ => false,
        };
        if !is_valid {
            result_file
                .problem
                .get_or_insert_with(|| format!("{name:?} is unknown or has a wrong type"));
        }
    }
    result_file
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn result_fields_are_validated() {
        let parse = |value: Value| parse_fields(value.as_object().unwrap());
        let good = parse(
            json!({"result": {"n": 1}, "rows_affected": 3, "error_code": "NO_DATA", "log_ref": "https://x", "progress": 0.5}),
        );
        assert_eq!(good.result, Some(json!({"n": 1})));
        assert_eq!((good.rows_affected, good.problem), (Some(3), None));
        assert_eq!(good.error_code.unwrap().as_str(), "NO_DATA");
        let invalid = parse(json!({"rows_affected": "many", "result": null}));
        assert_eq!(
            invalid.problem.as_deref(),
            Some("\"rows_affected\" is unknown or has a wrong type")
        );
        assert_eq!(
            parse(json!({"colour": 1})).problem.as_deref(),
            Some("\"colour\" is unknown or has a wrong type")
        );
        assert_eq!(read_result_file(Path::new("/nowhere/at/all")), ResultFile::default());
    }

    /// A command may create anything at the path of its result file.
    #[test]
    fn only_regular_files_are_read() {
        let dir = std::env::temp_dir().join(format!("tasuki_result_{}", std::process::id()));
        let _ = fs::remove_dir_all(&dir);
        fs::create_dir_all(dir.join("directory")).unwrap();
        let (link, pipe) = (dir.join("link"), dir.join("pipe"));
        std::os::unix::fs::symlink("/dev/zero", &link).unwrap();
        let mode = rustix::fs::Mode::RWXU;
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, mode, 0).unwrap();
        for path in [dir.join("directory"), link, pipe] {
            assert_eq!(
                read_result_file(&path).problem.as_deref(),
                Some("not a regular file"),
                "{path:?}"
            );
        }
        let (long, invalid) = (dir.join("long"), dir.join("odd"));
        fs::write(&long, "x".repeat(MAX_RESULT_BYTES as usize + 1)).unwrap();
        assert_eq!(read_result_file(&long).problem.unwrap(), "longer than 262144 bytes");
        fs::write(&invalid, b"\xff").unwrap();
        assert!(read_result_file(&invalid).problem.unwrap().contains("UTF-8"));
        fs::remove_dir_all(dir).unwrap();
    }
}
