//! Endpoints of the settings of the cluster.

use std::collections::BTreeMap;

use axum::extract::State;
use axum::http::{HeaderName, header};
use axum::response::IntoResponse;
use axum::{Extension, Json};
use serde::Serialize;
use tasuki::Operator;
use tasuki::operator::Actor;
use tasuki_core::Settings;
use tasuki_core::settings::{SettingDefinition, SettingsProblem};
use tasuki_store::CurrentSettings;
use utoipa::ToSchema;

use crate::input::{ActionHeaders, IfMatchHeaderDoc, JsonBody, RequestInput, UnvalidatedPathParam};
use crate::problem::Problem;

/// All settings.
#[derive(Serialize, ToSchema)]
pub(crate) struct SettingsView {
    /// Increases with every change. It is also the ETag.
    #[schema(minimum = 0)]
    version: i64,
    settings: BTreeMap<&'static str, SettingView>,
}

/// A setting.
#[derive(Serialize, ToSchema)]
pub(crate) struct SettingView {
    value: String,
    default: String,
    min: String,
    max: String,
    help: &'static str,
}

impl RequestInput for BTreeMap<String, String> {}

fn setting_view(definition: SettingDefinition, settings: &Settings) -> SettingView {
    SettingView {
        value: settings.find_value_text(definition.name).unwrap_or_default(),
        default: definition.default,
        min: definition.min,
        max: definition.max,
        help: definition.english,
    }
}

/// Converts the settings to their JSON.
pub(crate) fn settings_view(current: &CurrentSettings) -> SettingsView {
    let settings = Settings::definitions().into_iter();
    let settings = settings
        .map(|definition| (definition.name, setting_view(definition, &current.settings)))
        .collect();
    SettingsView { version: current.version, settings }
}

fn settings_response(current: &CurrentSettings) -> impl IntoResponse + use<> {
    let tag: [(HeaderName, String); 1] = [(header::ETAG, format!("\"{}\"", current.version))];
    (tag, Json(settings_view(current)))
}

/// Lists the settings.
#[utoipa::path(get, path = "/api/v1/settings", tag = "settings", responses(
    (status = 200, description = "all settings", body = SettingsView, headers(("ETag" = String))),
))]
pub(crate) async fn list_settings(
    State(operator): State<Operator>,
) -> Result<impl IntoResponse, Problem> {
    Ok(settings_response(&operator.read_settings().await?))
}

/// Shows a setting.
#[utoipa::path(get, path = "/api/v1/settings/{name}", tag = "settings", params(("name" = String, Path)), responses(
    (status = 200, description = "the setting", body = SettingView),
))]
pub(crate) async fn show_setting(
    State(operator): State<Operator>,
    UnvalidatedPathParam(name): UnvalidatedPathParam,
) -> Result<Json<SettingView>, Problem> {
    let known = Settings::definitions().into_iter().find(|definition| definition.name == name);
    let known = known.ok_or_else(|| unknown_setting(&name))?;
    Ok(Json(setting_view(known, &operator.read_settings().await?.settings)))
}

fn unknown_setting(name: &str) -> Problem {
    let problem = Problem::not_found("setting", name);
    let problems = Settings::default().with_changes(&[(name, "")]).err().unwrap_or_default();
    match problems.first() {
        Some(SettingsProblem::Unknown { suggestion: Some(suggestion), .. }) => {
            problem.with_hint(format!("did you mean {suggestion}?"))
        }
        _ => problem,
    }
}

/// Changes settings: all of them, or none.
#[utoipa::path(put, path = "/api/v1/settings", tag = "settings",
    params(IfMatchHeaderDoc),
    request_body = BTreeMap<String, String>, responses(
    (status = 200, description = "the settings after the change", body = SettingsView, headers(("ETag" = String))),
))]
pub(crate) async fn change_settings(
    State(operator): State<Operator>,
    Extension(actor): Extension<Actor>,
    headers: ActionHeaders,
    JsonBody(body): JsonBody<BTreeMap<String, String>>,
) -> Result<impl IntoResponse, Problem> {
    let version = match headers.if_match()? {
        Some(version) => version,
        None => operator.read_settings().await?.version,
    };
    let changes: Vec<(&str, &str)> =
        body.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    Ok(settings_response(&operator.change_settings(&actor, version, &changes).await?))
}
