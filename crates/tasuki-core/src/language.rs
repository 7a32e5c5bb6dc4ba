//! The languages people are addressed in.

crate::string_enum::words! {
    /// The language of words made for people. What is stored, logged or compared is English.
    pub enum Language, "language" {
        /// English.
        English = "en",
        /// Japanese.
        Japanese = "ja",
    }
}
