//! Validation of input before it is sent to the database. Many runs share one statement, so a value that the database
//! rejects for one run would make the statement fail for all of them.

use std::borrow::Cow;

use tasuki_core::InvalidInput;

use crate::NewRun;

/// Maximum length of a key, lane or other compared text, in characters. On every database an indexed column can hold
/// it.
pub(crate) const MAX_KEY_CHARS: usize = 191;
/// Maximum size of a JSON value, in bytes.
pub(crate) const MAX_JSON_BYTES: usize = 1 << 20;
/// Approximate maximum size of the parameters of one statement, in bytes. By default MariaDB accepts 16 MiB.
pub(crate) const MAX_STATEMENT_BYTES: usize = 4 << 20;

/// Checks a text that is compared with others, such as a key. Surrounding whitespace is not allowed: people would not
/// see the difference, and MySQL treats "a" and "a " as equal.
pub(crate) fn check_key(field: &'static str, text: &str) -> Result<(), InvalidInput> {
    let fits = !text.trim().is_empty() && text.chars().count() <= MAX_KEY_CHARS;
    if !fits || text.contains('\0') {
        return Err(InvalidInput::with_value(field, text, "1 to 191 characters"));
    }
    match text.trim() == text {
        true => Ok(()),
        false => Err(InvalidInput::with_value(field, text, "no whitespace around it")),
    }
}

/// Checks the size of a JSON text and that it has no NUL character. The error does not quote it: it may contain a
/// secret.
pub(crate) fn check_json_size_and_nul(field: &'static str, text: &str) -> Result<(), InvalidInput> {
    if text.len() > MAX_JSON_BYTES {
        return Err(InvalidInput::with_described_value(
            field,
            "a longer value",
            "at most 1048576 bytes",
        ));
    }
    match text.contains('\0') {
        true => Err(InvalidInput::with_described_value(field, "a NUL character", "JSON")),
        false => Ok(()),
    }
}

/// Checks the caller's input for one run.
pub(crate) fn check_submission(
    idempotency_key: Option<&str>,
    args: Option<&str>,
) -> Result<(), InvalidInput> {
    if let Some(text) = idempotency_key {
        check_key("idempotency key", text)?;
    }
    args.map_or(Ok(()), |text| check_json_size_and_nul("args", text))
}

/// Checks new runs before they are inserted together.
pub(crate) fn check_new_runs(runs: &[NewRun<'_>]) -> Result<(), InvalidInput> {
    runs.iter().try_for_each(|run| {
        // The job decides whether the leader assigns its runs or workers claim them. A run may use another lane only
        // if its job uses one.
        if let Some(lane) = &run.lane {
            check_key("lane", lane)?;
            if run.job.spec.lane.is_empty() {
                return Err(InvalidInput::with_value(
                    "lane",
                    lane,
                    "no lane, because the leader assigns the runs of this job",
                ));
            }
        }
        check_submission(run.idempotency_key.as_deref(), run.args.as_deref())
    })
}

/// Replaces NUL characters in a text that a program produced: PostgreSQL cannot store them.
pub(crate) fn replace_nul(text: &str) -> Cow<'_, str> {
    match text.contains('\0') {
        true => text.replace('\0', "\u{fffd}").into(),
        false => text.into(),
    }
}

/// Returns an upper bound for the size of a text as a JSON string, in bytes, without its quotes.
pub(crate) fn max_json_string_bytes(text: Option<&str>) -> usize {
    let escaped_size = |byte: u8| match byte {
        b'"' | b'\\' => 2,
        0..0x20 => 6,
        _ => 1,
    };
    text.unwrap_or_default().bytes().map(escaped_size).sum()
}

/// Splits a list into chunks that each fit into one statement: at most `max_items` items and [`MAX_STATEMENT_BYTES`]
/// bytes. A single item that is larger gets a chunk of its own.
pub(crate) fn chunks_by_size<T>(
    list: &[T],
    max_items: usize,
    byte_size: impl Fn(&T) -> usize,
) -> Vec<&[T]> {
    let mut chunks = Vec::new();
    let (mut start, mut chunk_bytes) = (0, 0);
    for (index, item) in list.iter().enumerate() {
        let item_bytes = byte_size(item);
        let is_full = chunk_bytes + item_bytes > MAX_STATEMENT_BYTES || index - start == max_items;
        if index > start && is_full {
            chunks.push(&list[start..index]);
            (start, chunk_bytes) = (index, 0);
        }
        chunk_bytes += item_bytes;
    }
    if start < list.len() {
        chunks.push(&list[start..]);
    }
    chunks
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_respect_both_limits_and_lose_no_item() {
        let chunk_lengths = |sizes: &[usize], max_items| {
            let chunks = chunks_by_size(sizes, max_items, |size| *size);
            chunks.iter().map(|chunk| chunk.len()).collect::<Vec<_>>()
        };
        assert_eq!(chunk_lengths(&[], 9), [] as [usize; 0]);
        assert_eq!(chunk_lengths(&[1, 2, 3], 9), [3]);
        assert_eq!(chunk_lengths(&[1, 2, 3], 2), [2, 1]);
        assert_eq!(chunk_lengths(&[MAX_STATEMENT_BYTES, 1], 9), [1, 1]);
        assert_eq!(
            chunk_lengths(&[1, MAX_STATEMENT_BYTES - 1, 1, 2 * MAX_STATEMENT_BYTES, 1], 9),
            [2, 1, 1, 1]
        );
    }

    #[test]
    fn json_byte_size_is_an_upper_bound() {
        for text in ["", "plain", "\"a\\b\"\n\u{1}\u{7f}", "日本"] {
            let quoted = serde_json::to_string(text).unwrap();
            assert!(max_json_string_bytes(Some(text)) + 2 >= quoted.len(), "{quoted}");
        }
    }
}
