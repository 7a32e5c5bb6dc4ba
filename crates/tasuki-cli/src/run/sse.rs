//! Server-sent events, as far as ours go: a name, data, an id.

/// One event, whole.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Event {
    pub(super) name: String,
    pub(super) data: String,
    pub(super) id: Option<String>,
}

/// Puts events together from whatever pieces the network delivers.
#[derive(Default)]
pub(super) struct Parser {
    /// The start of a line whose end has not come yet.
    rest: Vec<u8>,
    event: Event,
}

impl Parser {
    /// Takes a piece; gives the events it completes.
    pub(super) fn feed(&mut self, piece: &[u8]) -> Vec<Event> {
        self.rest.extend_from_slice(piece);
        let mut complete = Vec::new();
        let mut start = 0;
        while let Some(length) = self.rest[start..].iter().position(|&byte| byte == b'\n') {
            let line = &self.rest[start..start + length];
            let line = String::from_utf8_lossy(line.strip_suffix(b"\r").unwrap_or(line));
            start += length + 1;
            if let Some(event) = take_line(&mut self.event, &line) {
                complete.push(event);
            }
        }
        self.rest.drain(..start);
        complete
    }
}

/// An empty line ends an event.
fn take_line(event: &mut Event, line: &str) -> Option<Event> {
    if line.is_empty() {
        let whole = std::mem::take(event);
        // Keep-alives and retry hints say nothing.
        return (whole != Event::default()).then_some(whole);
    }
    let (field, value) = line.split_once(':').unwrap_or((line, ""));
    let value = value.strip_prefix(' ').unwrap_or(value);
    match field {
        "event" => event.name = value.to_owned(),
        "id" => event.id = Some(value.to_owned()),
        "data" => {
            if !event.data.is_empty() {
                event.data.push('\n');
            }
            event.data.push_str(value);
        }
        _ => {} // comments, and what we have no use for
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_make_events_wherever_they_are_cut() {
        let text = ": hello\n\nevent: log\nid: 1.0\ndata: {\"text\":\"日本\"}\n\nretry: 5\n\nevent:end\r\ndata:\r\n\r\nevent: cut";
        let event = |name: &str, data: &str, id: Option<&str>| Event {
            name: name.to_owned(),
            data: data.to_owned(),
            id: id.map(str::to_owned),
        };
        let expected = [event("log", "{\"text\":\"日本\"}", Some("1.0")), event("end", "", None)];
        for size in 1..=text.len() {
            let mut parser = Parser::default();
            let pieces = text.as_bytes().chunks(size);
            let events: Vec<Event> = pieces.flat_map(|piece| parser.feed(piece)).collect();
            assert_eq!(events, expected, "cut every {size}");
        }
    }
}
