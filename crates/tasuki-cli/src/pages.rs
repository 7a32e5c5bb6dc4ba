//! Lists come in pages; people and scripts get them as one.

use serde_json::{Value, json};

use crate::client::Call;
use crate::output::Failure;

/// The most the server gives at once.
const PAGE: usize = 200;

/// Turns pages until there are `wanted` items or no more. The answer has the shape of a page, and
/// its `next` says where to go on.
pub(crate) async fn collect<'a>(
    wanted: usize,
    call: impl Fn(Option<String>, usize) -> Call<'a>,
) -> Result<Value, Failure> {
    let mut items: Vec<Value> = Vec::new();
    let mut next = None;
    loop {
        let limit = PAGE.min(wanted - items.len());
        if limit == 0 {
            break;
        }
        let page = call(next.take(), limit).send().await?.body;
        items.extend(page["items"].as_array().into_iter().flatten().cloned());
        next = match &page["next"] {
            Value::Null => break,
            Value::String(cursor) => Some(cursor.clone()),
            other => Some(other.to_string()),
        };
    }
    Ok(json!({ "items": items, "next": next }))
}
