//! What a job prints, cut into lines.

/// The longest line that is kept, in bytes.
pub const LONGEST_LINE: usize = 16 << 10;
/// Stands where the rest of a line was cut off.
const CUT: &str = " [line cut]";

/// Cuts a stream of bytes into lines, as they come. It keeps one line at most, however much is printed
/// without a break; what is not UTF-8 is repaired, and NUL, which not every database keeps, replaced.
#[derive(Debug, Default)]
pub struct Lines {
    line: Vec<u8>,
    /// The line is full: its rest is passed over.
    full: bool,
}

impl Lines {
    /// Takes in some bytes and hands on every line that ends in them, without its break.
    pub fn take_in(&mut self, mut bytes: &[u8], mut line: impl FnMut(String)) {
        while let Some(at) = bytes.iter().position(|&byte| byte == b'\n') {
            self.keep(&bytes[..at]);
            bytes = &bytes[at + 1..];
            line(self.end_line());
        }
        self.keep(bytes);
    }

    /// The stream has ended: what came after the last break is a line too.
    pub fn end(mut self) -> Option<String> {
        (!self.line.is_empty()).then(|| self.end_line())
    }

    fn keep(&mut self, bytes: &[u8]) {
        // One byte more than a line has shows that it is longer, and may be the half of its break.
        let room = LONGEST_LINE + 1 - self.line.len();
        self.full |= bytes.len() > room;
        self.line.extend_from_slice(&bytes[..bytes.len().min(room)]);
    }

    fn end_line(&mut self) -> String {
        let mut bytes = std::mem::take(&mut self.line);
        let cut = std::mem::take(&mut self.full);
        if !cut && bytes.last() == Some(&b'\r') {
            bytes.pop();
        }
        let cut = cut || bytes.len() > LONGEST_LINE;
        if cut {
            bytes.truncate(whole(&bytes[..LONGEST_LINE]));
        }
        let mut text = String::from_utf8_lossy(&bytes).replace('\0', "\u{fffd}");
        if cut {
            text.push_str(CUT);
        }
        text
    }
}

/// How much of this is whole characters: a cut leaves no half of one behind.
fn whole(bytes: &[u8]) -> usize {
    match std::str::from_utf8(bytes) {
        Err(error) if error.error_len().is_none() => error.valid_up_to(),
        _ => bytes.len(),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn lines(parts: &[&[u8]]) -> Vec<String> {
        let (mut lines, mut found) = (Lines::default(), Vec::new());
        for part in parts {
            lines.take_in(part, |line| found.push(line));
        }
        found.extend(lines.end());
        found
    }

    #[test]
    fn lines_end_at_their_breaks_wherever_the_bytes_are_torn() {
        assert_eq!(lines(&[b"one\ntw", b"o\r", b"\n\nlast"]), ["one", "two", "", "last"]);
        assert_eq!(lines(&[b"\xe6\x97", b"\xa5\n"]), ["日"]);
        assert_eq!(lines(&[]), [] as [&str; 0]);
    }

    #[test]
    fn what_no_database_keeps_is_repaired() {
        assert_eq!(lines(&[b"a\0b\xffc\n"]), ["a\u{fffd}b\u{fffd}c"]);
    }

    #[test]
    fn a_line_that_is_too_long_is_cut_at_a_character_and_says_so() {
        let fits = "x".repeat(LONGEST_LINE);
        assert_eq!(lines(&[fits.as_bytes(), b"\r\nnext\n"]), [fits.as_str(), "next"]);
        assert_eq!(
            lines(&[fits.as_bytes(), b"y\nnext\n"]),
            [format!("{fits}{CUT}").as_str(), "next"]
        );
        let wide = "日".repeat(LONGEST_LINE / 3 + 1);
        let kept = "日".repeat(LONGEST_LINE / 3);
        assert_eq!(lines(&[wide.as_bytes()]), [format!("{kept}{CUT}")]);
    }

    #[test]
    fn a_stream_without_breaks_takes_no_more_than_a_line() {
        let mut lines = Lines::default();
        for _ in 0..1_000 {
            lines.take_in(&[b'x'; 4096], |_| panic!("there is no break"));
        }
        assert!(lines.line.capacity() <= 4 * LONGEST_LINE);
        assert_eq!(lines.end().map(|line| line.len()), Some(LONGEST_LINE + CUT.len()));
    }

    proptest! {
        /// However a stream is torn, the lines are the same.
        #[test]
        fn tearing_changes_nothing(bytes in prop::collection::vec(any::<u8>(), 0..400), at in 0usize..400) {
            let (one, two) = bytes.split_at(at.min(bytes.len()));
            prop_assert_eq!(lines(&[&bytes]), lines(&[one, two]));
        }
    }
}
