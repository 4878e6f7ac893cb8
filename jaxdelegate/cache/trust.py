"""Whether another user could have written a file, or could replace a folder."""

import errno
import functools
import os
import stat

_MOST_LINKS = 40  # on one path; Linux's limit


def why_not_trusted(state: os.stat_result, file: int | str) -> str | None:
    """Who else can write to a file or folder, in words that follow its name; None: only root.

    `file` is its descriptor or path.
    """
    if state.st_uid not in (os.geteuid(), 0):
        return f"belongs to user {state.st_uid}"
    is_for_all, is_for_group = state.st_mode & stat.S_IWOTH, state.st_mode & stat.S_IWGRP
    if is_for_all or (is_for_group and not _is_of_owner(state.st_gid, file)):
        return f"can be written by others (mode {stat.S_IMODE(state.st_mode):04o})"
    return None


def why_shared(path: str) -> str | None:
    """Who else could change or replace a folder, in words that follow its name.

    Checks every folder on its path, those of symbolic links included, as sshd does before it reads
    a user's keys (StrictModes). In a folder with the sticky bit, such as /tmp, other users cannot
    replace what belongs to this user or root. None: only root could; then `path` leads to the same
    folder the next time.
    """
    folder, state, links = "/", os.lstat("/"), 0
    remaining = os.path.join(os.getcwd(), path).split("/")[::-1]
    while remaining:
        part = remaining.pop()
        if part == "..":  # relative to the target of a link, as the system resolves it
            folder = os.path.dirname(folder)
            state = os.lstat(folder)
        elif part not in ("", "."):
            entry = os.path.join(folder, part)
            found = os.lstat(entry)
            if reason := _why_replaceable(folder, state, found):
                return f"is in {folder!r}, which {reason}"
            if not stat.S_ISLNK(found.st_mode):
                folder, state = entry, found
                continue
            links += 1
            if links > _MOST_LINKS:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
            target = os.readlink(entry)
            remaining += target.split("/")[::-1]
            if target.startswith("/"):
                folder, state = "/", os.lstat("/")
    return why_not_trusted(state, folder)


def _why_replaceable(path: str, folder: os.stat_result, entry: os.stat_result) -> str | None:
    """Who can rename an entry of a folder."""
    is_kept = folder.st_mode & stat.S_ISVTX and entry.st_uid in (os.geteuid(), 0)
    if is_kept and folder.st_uid in (os.geteuid(), 0):
        return None
    return why_not_trusted(folder, path)


def _is_of_owner(group: int, file: int | str) -> bool:
    """Whether only this user is in the group of a file, and no ACL adds to the mode.

    Many systems give each user a group of the same name, and let that group write.
    """
    return _is_own_group(group, os.geteuid()) and not _has_acl(file)


@functools.cache
def _is_own_group(group: int, user: int) -> bool:
    import grp  # noqa: PLC0415 (few folders need these)
    import pwd  # noqa: PLC0415

    try:
        owner, members = pwd.getpwuid(user), grp.getgrgid(group)
    except KeyError:
        return False
    is_named_alike = user != 0 and owner.pw_gid == group and owner.pw_name == members.gr_name
    return is_named_alike and not {*members.gr_mem} - {owner.pw_name}


def _has_acl(file: int | str) -> bool:
    try:
        return any("acl" in name for name in os.listxattr(file))
    except OSError:  # a file system without extended attributes
        return False
