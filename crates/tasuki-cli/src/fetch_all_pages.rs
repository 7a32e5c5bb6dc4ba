//! Pagination: fetches the pages of a list from the API and returns them as one list.

use serde_json::{Value, json};

use crate::client::ApiRequest;
use crate::failure::Failure;

/// Maximum number of items that the server returns in one page.
const MAX_PAGE_SIZE: usize = 200;

/// Fetches pages until there are `max_items` items or the list ends. `request` builds the request for a position and a
/// page size. The result has the format of a page; its `next` is the position of the next page.
pub(crate) async fn fetch_items<'a>(
    max_items: usize,
    request: impl Fn(Option<String>, usize) -> ApiRequest<'a>,
) -> Result<Value, Failure> {
    let mut items: Vec<Value> = Vec::new();
    let mut next = None;
    loop {
        let limit = MAX_PAGE_SIZE.min(max_items - items.len());
        if limit == 0 {
            break;
        }
        let page = request(next.take(), limit).send().await?.body;
        items.extend(page["items"].as_array().into_iter().flatten().cloned());
        next = match &page["next"] {
            Value::Null => break,
            Value::String(cursor) => Some(cursor.clone()),
            other => Some(other.to_string()),
        };
    }
    Ok(json!({ "items": items, "next": next }))
}
