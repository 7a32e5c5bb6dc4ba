//! Finds the closest valid value for a mistyped one, for "did you mean …?" hints.

/// The candidate with the smallest edit distance to `typed`, if at most a third of the letters differ.
pub(crate) fn did_you_mean<'a>(
    typed: &str,
    candidates: impl Iterator<Item = &'a str>,
) -> Option<&'a str> {
    const MAX_CHARS: usize = 64; // bounds the cost for very long input
    let typed: Vec<char> = typed.chars().take(MAX_CHARS).flat_map(char::to_lowercase).collect();
    let max_distance = typed.len() / 3;
    candidates
        .map(|candidate| (distance(&typed, candidate), candidate))
        .filter(|(distance, _)| *distance <= max_distance)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

/// The edit distance, ignoring case: the number of letters to add, remove or change.
fn distance(typed: &[char], candidate: &str) -> usize {
    let mut previous: Vec<usize> = (0..=typed.len()).collect();
    for (row, letter) in candidate.chars().flat_map(char::to_lowercase).enumerate() {
        let mut current = Vec::with_capacity(previous.len());
        current.push(row + 1);
        for (column, &typed_letter) in typed.iter().enumerate() {
            let change = previous[column] + usize::from(typed_letter != letter);
            current.push(change.min(previous[column + 1] + 1).min(current[column] + 1));
        }
        previous = current;
    }
    previous[typed.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_close_candidate_is_found_and_a_distant_one_is_not() {
        let zones = ["Europe/Berlin", "Asia/Tokyo", "UTC"];
        let suggest = |typed| did_you_mean(typed, zones.into_iter());
        assert_eq!(suggest("europe/berln"), Some("Europe/Berlin"));
        assert_eq!(suggest("Asia/Tokio"), Some("Asia/Tokyo"));
        assert_eq!(suggest("Mars/Olympus"), None);
        assert_eq!(suggest(""), None);
    }
}
