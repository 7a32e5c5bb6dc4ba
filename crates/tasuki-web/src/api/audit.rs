//! Endpoint of the audit: who changed what, and when.

use axum::Json;
use axum::extract::State;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tasuki::Operator;
use tasuki_store::AuditEntry;
use utoipa::{IntoParams, ToSchema};

use super::{format_instant, parse_stored_json};
use crate::input::{QueryParams, parse_number_param, parse_page_limit};
use crate::problem::Problem;

/// An audit entry: one change.
#[derive(Serialize, ToSchema)]
pub(crate) struct AuditEntryView {
    #[schema(minimum = 1)]
    seq: i64,
    #[schema(format = DateTime)]
    at: String,
    actor: String,
    action: String,
    object: String,
    address: Option<String>,
    before: Option<Value>,
    after: Option<Value>,
    /// Hash of this entry, over its content and the hash of the previous one.
    hash: String,
    /// Hash of the previous entry.
    prev_hash: String,
}

/// A page of audit entries, oldest first.
#[derive(Serialize, ToSchema)]
pub(crate) struct AuditPage {
    items: Vec<AuditEntryView>,
    /// Value of `after` for the next page; null on the last page.
    next: Option<i64>,
}

/// Query parameters of the audit.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct AuditQuery {
    /// Only entries after this `seq`.
    #[param(value_type = Option<i64>, minimum = 0)]
    after: Option<String>,
    /// Maximum number of entries.
    #[param(value_type = Option<u32>, minimum = 1, maximum = 200)]
    limit: Option<String>,
}

fn audit_entry_view(entry: &AuditEntry) -> AuditEntryView {
    let hex = |hash: &[u8; 32]| hash.iter().map(|byte| format!("{byte:02x}")).collect();
    AuditEntryView {
        seq: entry.seq,
        at: format_instant(entry.at),
        actor: entry.actor.clone(),
        action: entry.action.clone(),
        object: entry.object.clone(),
        address: entry.address.clone(),
        before: parse_stored_json(entry.before.as_deref()),
        after: parse_stored_json(entry.after.as_deref()),
        hash: hex(&entry.hash),
        prev_hash: hex(&entry.prev_hash),
    }
}

/// Lists audit entries, oldest first.
#[utoipa::path(get, path = "/api/v1/audit", tag = "audit", params(AuditQuery), responses(
    (status = 200, description = "a page of audit entries", body = AuditPage),
))]
pub(crate) async fn list_audit(
    State(operator): State<Operator>,
    QueryParams(query): QueryParams<AuditQuery>,
) -> Result<Json<AuditPage>, Problem> {
    let after = parse_number_param("after", query.after.as_deref(), 0, i64::MAX)?.unwrap_or(0);
    let limit = parse_page_limit(query.limit.as_deref())?;
    let entries = operator.list_audit(after, limit).await?;
    let next = entries.last().filter(|_| entries.len() == limit as usize).map(|entry| entry.seq);
    Ok(Json(AuditPage { items: entries.iter().map(audit_entry_view).collect(), next }))
}
