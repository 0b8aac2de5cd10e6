//! This build's version and commit. It is a crate of its own, so a new commit rebuilds only the crates that print it.
#![forbid(unsafe_code)]

/// The version of the workspace, such as `0.1.0`.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The first twelve digits of the commit that this was built from; local changes to files do not show. `None` if the build was not
/// in the project's repository.
pub const COMMIT: Option<&str> = option_env!("NICETY_COMMIT");

/// Version and commit for people: `0.1.0 (6054bc91d2e3)`, or the version alone.
pub const BUILD: &str = env!("NICETY_BUILD");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_build_in_the_repository_names_its_commit_and_any_other_its_version_alone() {
        match COMMIT {
            Some(commit) => {
                assert!(commit.len() == 12 && commit.bytes().all(|digit| digit.is_ascii_hexdigit()), "{commit}");
                assert_eq!(BUILD, format!("{VERSION} ({commit})"));
            }
            None => assert_eq!(BUILD, VERSION),
        }
    }
}
