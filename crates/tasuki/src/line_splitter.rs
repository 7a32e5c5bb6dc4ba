//! Splits the output of a job into lines.

/// Maximum length of a stored line in bytes. Longer lines are cut.
pub const MAX_LINE_BYTES: usize = 16 << 10;
/// Appended to a line that was cut.
const CUT_MARK: &str = " [line cut]";

/// Splits a stream of bytes into lines. It buffers at most one line, also if the output has no line breaks. Invalid
/// UTF-8 is replaced, and so is NUL, which not every database can store.
#[derive(Debug, Default)]
pub struct LineSplitter {
    line: Vec<u8>,
    /// Whether the line is longer than the maximum; its rest is dropped.
    full: bool,
}

impl LineSplitter {
    /// Adds bytes, and calls `line` for every line that ends in them, without its line break.
    pub fn push(&mut self, mut bytes: &[u8], mut line: impl FnMut(String)) {
        while let Some(at) = bytes.iter().position(|&byte| byte == b'\n') {
            self.buffer(&bytes[..at]);
            bytes = &bytes[at + 1..];
            line(self.end_line());
        }
        self.buffer(bytes);
    }

    /// Ends the stream. Returns the text after the last line break, if there is any.
    pub fn finish(mut self) -> Option<String> {
        (!self.line.is_empty()).then(|| self.end_line())
    }

    fn buffer(&mut self, bytes: &[u8]) {
        // One byte more than the maximum shows that the line is longer. It may also be the CR of a CR LF.
        let free = MAX_LINE_BYTES + 1 - self.line.len();
        self.full |= bytes.len() > free;
        self.line.extend_from_slice(&bytes[..bytes.len().min(free)]);
    }

    fn end_line(&mut self) -> String {
        let mut bytes = std::mem::take(&mut self.line);
        let cut = std::mem::take(&mut self.full);
        if !cut && bytes.last() == Some(&b'\r') {
            bytes.pop();
        }
        let cut = cut || bytes.len() > MAX_LINE_BYTES;
        if cut {
            bytes.truncate(complete_chars_len(&bytes[..MAX_LINE_BYTES]));
        }
        let mut text = String::from_utf8_lossy(&bytes).replace('\0', "\u{fffd}");
        if cut {
            text.push_str(CUT_MARK);
        }
        text
    }
}

/// The length of the complete characters at the start of `bytes`, so that a cut does not split a character.
fn complete_chars_len(bytes: &[u8]) -> usize {
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
        let (mut lines, mut found) = (LineSplitter::default(), Vec::new());
        for part in parts {
            lines.push(part, |line| found.push(line));
        }
        found.extend(lines.finish());
        found
    }

    #[test]
    fn lines_end_at_line_breaks_however_the_bytes_are_split() {
        assert_eq!(lines(&[b"one\ntw", b"o\r", b"\n\nlast"]), ["one", "two", "", "last"]);
        assert_eq!(lines(&[b"\xe6\x97", b"\xa5\n"]), ["日"]);
        assert_eq!(lines(&[]), [] as [&str; 0]);
    }

    #[test]
    fn nul_and_invalid_utf8_are_replaced() {
        assert_eq!(lines(&[b"a\0b\xffc\n"]), ["a\u{fffd}b\u{fffd}c"]);
    }

    #[test]
    fn a_line_that_is_too_long_is_cut_after_a_character_and_marked() {
        let fits = "x".repeat(MAX_LINE_BYTES);
        assert_eq!(lines(&[fits.as_bytes(), b"\r\nnext\n"]), [fits.as_str(), "next"]);
        assert_eq!(
            lines(&[fits.as_bytes(), b"y\nnext\n"]),
            [format!("{fits}{CUT_MARK}").as_str(), "next"]
        );
        let wide = "日".repeat(MAX_LINE_BYTES / 3 + 1);
        let kept = "日".repeat(MAX_LINE_BYTES / 3);
        assert_eq!(lines(&[wide.as_bytes()]), [format!("{kept}{CUT_MARK}")]);
    }

    #[test]
    fn a_stream_without_line_breaks_uses_the_memory_of_one_line() {
        let mut lines = LineSplitter::default();
        for _ in 0..1_000 {
            lines.push(&[b'x'; 4096], |_| panic!("there is no line break"));
        }
        assert!(lines.line.capacity() <= 4 * MAX_LINE_BYTES);
        assert_eq!(lines.finish().map(|line| line.len()), Some(MAX_LINE_BYTES + CUT_MARK.len()));
    }

    proptest! {
        /// The lines do not depend on how the stream is split.
        #[test]
        fn splitting_the_stream_changes_nothing(bytes in prop::collection::vec(any::<u8>(), 0..400), at in 0usize..400) {
            let (first, second) = bytes.split_at(at.min(bytes.len()));
            prop_assert_eq!(lines(&[&bytes]), lines(&[first, second]));
        }
    }
}
