//! Settings: how the cluster behaves.

use std::collections::BTreeMap;

use axum::extract::State;
use axum::http::{HeaderName, header};
use axum::response::IntoResponse;
use axum::{Extension, Json};
use serde::Serialize;
use tasuki::Operator;
use tasuki::operator::Actor;
use tasuki_core::Settings;
use tasuki_core::settings::{Definition, Problem as Wrong};
use tasuki_store::SettingsInForce;
use utoipa::ToSchema;

use crate::input::{Body, Headers, Input, Named, VersionSeen};
use crate::problem::Problem;

/// The settings in force.
#[derive(Serialize, ToSchema)]
pub(crate) struct SettingsView {
    /// Raised by every change; the ETag.
    #[schema(minimum = 0)]
    version: i64,
    settings: BTreeMap<&'static str, SettingView>,
}

/// One setting.
#[derive(Serialize, ToSchema)]
pub(crate) struct SettingView {
    value: String,
    default: String,
    min: String,
    max: String,
    help: &'static str,
}

impl Input for BTreeMap<String, String> {}

fn setting_view(one: Definition, settings: &Settings) -> SettingView {
    SettingView {
        value: settings.get(one.name).unwrap_or_default(),
        default: one.default,
        min: one.min,
        max: one.max,
        help: one.english,
    }
}

/// The settings as they are shown.
pub(crate) fn view(now: &SettingsInForce) -> SettingsView {
    let settings = Settings::definitions().into_iter();
    let settings = settings.map(|one| (one.name, setting_view(one, &now.settings))).collect();
    SettingsView { version: now.version, settings }
}

fn answer(now: &SettingsInForce) -> impl IntoResponse + use<> {
    let tag: [(HeaderName, String); 1] = [(header::ETAG, format!("\"{}\"", now.version))];
    (tag, Json(view(now)))
}

/// Lists the settings.
#[utoipa::path(get, path = "/api/v1/settings", tag = "settings", responses(
    (status = 200, description = "all of them", body = SettingsView, headers(("ETag" = String))),
))]
pub(crate) async fn list_settings(
    State(operator): State<Operator>,
) -> Result<impl IntoResponse, Problem> {
    Ok(answer(&operator.settings().await?))
}

/// Shows a setting.
#[utoipa::path(get, path = "/api/v1/settings/{name}", tag = "settings", params(("name" = String, Path)), responses(
    (status = 200, description = "the setting", body = SettingView),
))]
pub(crate) async fn show_setting(
    State(operator): State<Operator>,
    Named(name): Named,
) -> Result<Json<SettingView>, Problem> {
    let known = Settings::definitions().into_iter().find(|one| one.name == name);
    let known = known.ok_or_else(|| unknown(&name))?;
    Ok(Json(setting_view(known, &operator.settings().await?.settings)))
}

fn unknown(name: &str) -> Problem {
    let problem = Problem::not_found("setting", name);
    let wrong = Settings::default().with(&[(name, "")]).err().unwrap_or_default();
    match wrong.first() {
        Some(Wrong::Unknown { meant: Some(meant), .. }) => {
            problem.hint(format!("did you mean {meant}?"))
        }
        _ => problem,
    }
}

/// Changes settings, all or none.
#[utoipa::path(put, path = "/api/v1/settings", tag = "settings",
    params(VersionSeen),
    request_body = BTreeMap<String, String>, responses(
    (status = 200, description = "they are in force", body = SettingsView, headers(("ETag" = String))),
))]
pub(crate) async fn change_settings(
    State(operator): State<Operator>,
    Extension(actor): Extension<Actor>,
    headers: Headers,
    Body(body): Body<BTreeMap<String, String>>,
) -> Result<impl IntoResponse, Problem> {
    let seen = match headers.if_match()? {
        Some(version) => version,
        None => operator.settings().await?.version,
    };
    let changes: Vec<(&str, &str)> =
        body.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    Ok(answer(&operator.change_settings(&actor, seen, &changes).await?))
}
