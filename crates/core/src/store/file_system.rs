//! The file system of a folder: whether other hosts see it too, and whether owners and modes mean anything there.

use std::path::Path;

/// Variable that overrides the detection: `yes` or `no`.
const VARIABLE: &str = "DOWNSHIFT_SHARED_FOLDER";

/// A kind of file system, as far as a run depends on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileSystem {
    /// NFS, any version.
    Nfs,
    /// Lustre.
    Lustre,
    /// A Windows share: CIFS, SMB.
    Smb,
    /// GPFS, also called Spectrum Scale.
    Gpfs,
    /// `BeeGFS`.
    BeeGfs,
    /// Another file system of several hosts: Ceph, AFS, `OrangeFS`, `PanFS`, OCFS2, GFS2.
    Cluster,
    /// FUSE, whatever is behind it: sshfs and `GlusterFS` are shared, NTFS-3G is not.
    Fuse,
    /// FAT, exFAT or NTFS on a disk of this host, or a Windows drive below WSL's `/mnt` (9P).
    Windows,
    /// Everything else: a disk of this host.
    Local,
}

/// The variable has a value that means nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{VARIABLE} is `{0}`; write `yes` if other hosts use the runs directory too, or `no`")]
pub struct BadOverride(String);

impl FileSystem {
    /// Returns the file system of an existing path; a local one if the system does not say.
    #[must_use]
    pub fn of(path: &Path) -> Self {
        rustix::fs::statfs(path).map_or(Self::Local, |about| Self::from_magic(about.f_type as u32))
    }

    /// Classifies the `f_type` of statfs(2).
    #[must_use]
    pub fn from_magic(magic: u32) -> Self {
        match magic {
            0x6969 => Self::Nfs,
            0x0bd0_0bd0 => Self::Lustre,
            0x517b | 0xff53_4d42 | 0xfe53_4d42 => Self::Smb,
            0x4750_4653 => Self::Gpfs,
            0x1983_0326 => Self::BeeGfs,
            0x00c3_6400 | 0x5346_414f | 0x2003_0528 | 0xaad7_aaea | 0x7461_636f | 0x0116_1970 => Self::Cluster,
            0x6573_5546 => Self::Fuse,
            0x4d44 | 0x2011_bab0 | 0x5346_544e | 0x7366_746e | 0x0102_1997 => Self::Windows,
            _ => Self::Local,
        }
    }

    /// Reports whether processes of another host may use the same folder. FUSE counts: a needless lease costs little, a
    /// missing one a run that is trained twice.
    #[must_use]
    pub fn is_shared(self) -> bool {
        !matches!(self, Self::Windows | Self::Local)
    }

    /// Reports whether owners and modes are meaningful. A Windows drive, a Windows share or a USB stick shows the same owner
    /// and mode for every file, usually 0777; Windows or the server controls access.
    #[must_use]
    pub fn keeps_permissions(self) -> bool {
        !matches!(self, Self::Smb | Self::Fuse | Self::Windows)
    }

    /// Returns its name for the journal.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Nfs => "NFS",
            Self::Lustre => "Lustre",
            Self::Smb => "a Windows share",
            Self::Gpfs => "GPFS",
            Self::BeeGfs => "BeeGFS",
            Self::Cluster => "a file system of several hosts",
            Self::Fuse => "FUSE",
            Self::Windows | Self::Local => "a folder that other hosts use too",
        }
    }
}

/// Reports whether processes of other hosts may use this folder: by the variable, else by its file system.
#[must_use]
pub fn is_shared(folder: &Path) -> bool {
    let forced = || std::env::var(VARIABLE).ok().and_then(|value| parse_override(&value).ok().flatten());
    forced().unwrap_or_else(|| FileSystem::of(folder).is_shared())
}

/// Refuses a value of the variable that would silently be ignored.
///
/// # Errors
/// Returns that value.
pub fn check_override() -> Result<(), BadOverride> {
    std::env::var(VARIABLE).map_or(Ok(()), |value| parse_override(&value).map(drop))
}

fn parse_override(value: &str) -> Result<Option<bool>, BadOverride> {
    match value {
        "" => Ok(None),
        "yes" => Ok(Some(true)),
        "no" => Ok(Some(false)),
        other => Err(BadOverride(other.to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::{FileSystem, parse_override};

    #[test]
    fn a_file_system_is_known_by_its_number() {
        let table = [
            (0x6969, FileSystem::Nfs, true, true),
            (0x0bd0_0bd0, FileSystem::Lustre, true, true),
            (0xff53_4d42, FileSystem::Smb, true, false),
            (0xfe53_4d42, FileSystem::Smb, true, false),
            (0x4750_4653, FileSystem::Gpfs, true, true),
            (0x1983_0326, FileSystem::BeeGfs, true, true),
            (0x00c3_6400, FileSystem::Cluster, true, true),
            (0x6573_5546, FileSystem::Fuse, true, false),
            // A drive of Windows under WSL: seen by Windows and this one kernel.
            (0x0102_1997, FileSystem::Windows, false, false),
            (0x4d44, FileSystem::Windows, false, false),
            // ext4, XFS, Btrfs, tmpfs, overlayfs, ZFS
            (0xef53, FileSystem::Local, false, true),
            (0x5846_5342, FileSystem::Local, false, true),
            (0x9123_683e, FileSystem::Local, false, true),
            (0x0102_1994, FileSystem::Local, false, true),
            (0x794c_7630, FileSystem::Local, false, true),
            (0x2fc1_2fc1, FileSystem::Local, false, true),
        ];
        for (magic, kind, shared, permissions) in table {
            let found = FileSystem::from_magic(magic);
            assert_eq!((found, found.is_shared(), found.keeps_permissions()), (kind, shared, permissions), "{magic:x}");
        }
    }

    #[test]
    fn the_override_is_yes_or_no() {
        assert_eq!(
            [parse_override(""), parse_override("yes"), parse_override("no")],
            [Ok(None), Ok(Some(true)), Ok(Some(false))]
        );
        assert!(parse_override("true").unwrap_err().to_string().contains("is `true`; write `yes`"));
    }
}
