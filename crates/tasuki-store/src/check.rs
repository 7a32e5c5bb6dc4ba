//! What may be handed in. Everything is checked before it travels: many runs share one statement, and
//! what a database refuses in one of them it would refuse for all.

use std::borrow::Cow;

use tasuki_core::Invalid;

use crate::NewRun;

/// The longest word, lane or key, in characters; an indexed column on every database can hold it.
pub(crate) const LONGEST_WORD: usize = 191;
/// The longest JSON, in bytes.
pub(crate) const LONGEST_JSON: usize = 1 << 20;
/// About how much travels in one statement, in bytes; MariaDB takes 16 MiB unless told otherwise.
pub(crate) const TRIP: usize = 4 << 20;

/// A word that is compared. With space around it two would look alike, and MySQL takes "a" and "a " for
/// one.
pub(crate) fn key(field: &'static str, typed: &str) -> Result<(), Invalid> {
    let fits = !typed.trim().is_empty() && typed.chars().count() <= LONGEST_WORD;
    if !fits || typed.contains('\0') {
        return Err(Invalid::typed(field, typed, "1 to 191 characters"));
    }
    match typed.trim() == typed {
        true => Ok(()),
        false => Err(Invalid::typed(field, typed, "no space around it")),
    }
}

/// JSON that is passed on as it is. Not quoted in the refusal: there may be a secret in it.
pub(crate) fn text(field: &'static str, typed: &str) -> Result<(), Invalid> {
    if typed.len() > LONGEST_JSON {
        return Err(Invalid::described(field, "a longer one", "at most 1048576 bytes"));
    }
    match typed.contains('\0') {
        true => Err(Invalid::described(field, "a NUL character", "JSON")),
        false => Ok(()),
    }
}

/// What a caller says of a run.
pub(crate) fn task(idempotency_key: Option<&str>, args: Option<&str>) -> Result<(), Invalid> {
    if let Some(typed) = idempotency_key {
        key("idempotency key", typed)?;
    }
    args.map_or(Ok(()), |typed| text("args", typed))
}

pub(crate) fn runs(runs: &[NewRun<'_>]) -> Result<(), Invalid> {
    runs.iter().try_for_each(|run| {
        // Who assigns and who claims is the job's to say: a run only waits in another lane of the same kind.
        if let Some(lane) = &run.lane {
            key("lane", lane)?;
            if run.job.spec.lane.is_empty() {
                return Err(Invalid::typed("lane", lane, "none where the leader assigns"));
            }
        }
        task(run.idempotency_key.as_deref(), run.args.as_deref())
    })
}

/// Text from a program, which may say anything: PostgreSQL keeps no NUL.
pub(crate) fn without_nul(said: &str) -> Cow<'_, str> {
    match said.contains('\0') {
        true => said.replace('\0', "\u{fffd}").into(),
        false => said.into(),
    }
}

/// How long a text is at most inside of JSON.
pub(crate) fn weight(text: Option<&str>) -> usize {
    let byte = |byte: u8| match byte {
        b'"' | b'\\' => 2,
        0..0x20 => 6,
        _ => 1,
    };
    text.unwrap_or_default().bytes().map(byte).sum()
}

/// Cuts a list into parts that can travel. What is too heavy by itself travels alone.
pub(crate) fn trips<T>(list: &[T], most: usize, weight: impl Fn(&T) -> usize) -> Vec<&[T]> {
    let mut parts = Vec::new();
    let (mut from, mut sum) = (0, 0);
    for (index, one) in list.iter().enumerate() {
        let more = weight(one);
        if index > from && (sum + more > TRIP || index - from == most) {
            parts.push(&list[from..index]);
            (from, sum) = (index, 0);
        }
        sum += more;
    }
    if from < list.len() {
        parts.push(&list[from..]);
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trip_is_neither_too_heavy_nor_too_long_and_nothing_is_left_behind() {
        let parts = |weights: &[usize], most| {
            trips(weights, most, |weight| *weight).iter().map(|part| part.len()).collect::<Vec<_>>()
        };
        assert_eq!(parts(&[], 9), [] as [usize; 0]);
        assert_eq!(parts(&[1, 2, 3], 9), [3]);
        assert_eq!(parts(&[1, 2, 3], 2), [2, 1]);
        assert_eq!(parts(&[TRIP, 1], 9), [1, 1]);
        assert_eq!(parts(&[1, TRIP - 1, 1, 2 * TRIP, 1], 9), [2, 1, 1, 1]);
    }

    #[test]
    fn a_weight_is_what_json_makes_of_it() {
        for text in ["", "plain", "\"a\\b\"\n\u{1}\u{7f}", "日本"] {
            let quoted = serde_json::to_string(text).unwrap();
            assert!(weight(Some(text)) + 2 >= quoted.len(), "{quoted}");
        }
    }
}
