//! "Did you mean …?"

/// The candidate closest to `typed`, if one is close enough to be what was meant.
pub(crate) fn nearest<'a>(
    typed: &str,
    candidates: impl Iterator<Item = &'a str>,
) -> Option<&'a str> {
    const LONGEST: usize = 64; // keeps the cost of a wild guess small
    let typed: Vec<char> = typed.chars().take(LONGEST).flat_map(char::to_lowercase).collect();
    let close_enough = typed.len() / 3;
    candidates
        .map(|candidate| (distance(&typed, candidate), candidate))
        .filter(|(distance, _)| *distance <= close_enough)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

/// How many letters must be added, dropped or changed to get from one word to the other.
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
    fn finds_what_was_meant_and_does_not_guess_wildly() {
        let zones = ["Europe/Berlin", "Asia/Tokyo", "UTC"];
        let ask = |typed| nearest(typed, zones.into_iter());
        assert_eq!(ask("europe/berln"), Some("Europe/Berlin"));
        assert_eq!(ask("Asia/Tokio"), Some("Asia/Tokyo"));
        assert_eq!(ask("Mars/Olympus"), None);
        assert_eq!(ask(""), None);
    }
}
