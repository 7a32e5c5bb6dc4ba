//! The languages of user interface texts.

crate::string_enum::string_enum! {
    /// The language of texts for users. Stored, logged and compared texts are always English.
    pub enum Language, "language" {
        /// English.
        English = "en",
        /// Japanese.
        Japanese = "ja",
    }
}
