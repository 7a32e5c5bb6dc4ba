//! Parser of server-sent events, limited to the fields that the tasuki server sends: name, data and id.

/// One complete event.
#[derive(Debug, Default, PartialEq)]
pub(super) struct SseEvent {
    pub(super) name: String,
    pub(super) data: String,
    pub(super) id: Option<String>,
}

/// Assembles events from network chunks of any size.
#[derive(Default)]
pub(super) struct SseParser {
    /// The start of a line whose end has not arrived yet.
    partial_line: Vec<u8>,
    event: SseEvent,
}

impl SseParser {
    /// Adds a chunk and returns the events that it completes.
    pub(super) fn feed(&mut self, chunk: &[u8]) -> Vec<SseEvent> {
        self.partial_line.extend_from_slice(chunk);
        let mut complete = Vec::new();
        let mut start = 0;
        while let Some(length) = self.partial_line[start..].iter().position(|&byte| byte == b'\n') {
            let line = &self.partial_line[start..start + length];
            let line = String::from_utf8_lossy(line.strip_suffix(b"\r").unwrap_or(line));
            start += length + 1;
            if let Some(event) = apply_line(&mut self.event, &line) {
                complete.push(event);
            }
        }
        self.partial_line.drain(..start);
        complete
    }
}

/// Applies a line to the current event. An empty line completes the event, which is returned.
fn apply_line(event: &mut SseEvent, line: &str) -> Option<SseEvent> {
    if line.is_empty() {
        let complete = std::mem::take(event);
        // Keep-alive comments and retry fields leave the event empty; they are not reported.
        return (complete != SseEvent::default()).then_some(complete);
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
        _ => {} // comments and unused fields
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_assembled_from_chunks_of_any_size() {
        let text = ": hello\n\nevent: log\nid: 1.0\ndata: {\"text\":\"日本\"}\n\nretry: 5\n\nevent:end\r\ndata:\r\n\r\nevent: cut";
        let event = |name: &str, data: &str, id: Option<&str>| SseEvent {
            name: name.to_owned(),
            data: data.to_owned(),
            id: id.map(str::to_owned),
        };
        let expected = [event("log", "{\"text\":\"日本\"}", Some("1.0")), event("end", "", None)];
        for size in 1..=text.len() {
            let mut parser = SseParser::default();
            let chunks = text.as_bytes().chunks(size);
            let events: Vec<SseEvent> = chunks.flat_map(|chunk| parser.feed(chunk)).collect();
            assert_eq!(events, expected, "cut every {size}");
        }
    }
}
