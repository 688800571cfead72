// Pure: the panel's model of the worker groups. The answer of GET /paralleldit/groups and the events after it change
// it. Each function returns a new model and does not change its argument.

import { splitLines } from './log.mjs'

export const RUNS = 10 // of a group are kept, as on the server
export const SILENT_SECONDS = 3 // a rank gives four signs of life a second

const ALIVE = ['starting', 'ready', 'busy', 'cancelling', 'parked', 'restarting']
const STOPPED = { state: 'stopped', deaths: 0, last_death: null, remarks: [] }

/** Returns the model of a page that has no answer yet. */
export const createModel = () => ({ loaded: false, problem: '', connected: true, device: '', devices: 0, groups: [] })

const createGroup = (number) => ({ number, status: STOPPED, runs: [], logs: {} })

/** Applies the answer of GET /paralleldit/groups. Open logs must be read again after it. */
export function applyAnswer(model, answer) {
  const groups = answer.groups.map(({ group: number, status, runs }) => ({ ...createGroup(number), status, runs }))
  return {
    ...model,
    loaded: true,
    problem: '',
    connected: true,
    device: answer.device,
    devices: answer.devices,
    groups: groups.length ? groups : [createGroup(1)]
  }
}

/** Applies an event `paralleldit.group`. */
export function applyEvent(model, { group: number, status, runs }) {
  return changeGroup(model, number, (old) => ({
    ...old,
    status,
    runs: (runs ?? []).reduce(addRun, old.runs)
  }))
}

/** Whether a rank's log is to be read: it never was, or the group has changed since. */
export function isLogOld(model, number, rank) {
  const group = model.groups.find((each) => each.number === number)
  const log = group?.logs[rank]
  return Boolean(group) && !log?.isReading && log?.status !== group.status
}

/** Notes that a rank's log is being read. Its lines stay until then. */
export const openLog = (model, number, rank) =>
  changeLog(model, number, rank, (group) => ({ isReading: true, status: group.status }))

/** Applies the answer of GET /paralleldit/logs for a rank; null if there was none. */
export const applyLog = (model, number, rank, text) =>
  changeLog(model, number, rank, () => ({ isReading: false, ...(text === null ? {} : { lines: splitLines(text) }) }))

const changeLog = (model, number, rank, change) =>
  changeGroup(model, number, (old) => {
    const log = { lines: [], ...old.logs[rank], ...change(old) }
    return { ...old, logs: { ...old.logs, [rank]: log } }
  })

function changeGroup(model, number, change) {
  const old = model.groups.find((each) => each.number === number) ?? createGroup(number)
  const others = model.groups.filter((each) => each.number !== number)
  return { ...model, groups: [...others, change(old)].sort((a, b) => a.number - b.number) }
}

function addRun(runs, run) {
  const others = runs.filter(({ id }) => id !== run.id)
  return [run, ...others].sort((a, b) => b.id - a.id).slice(0, RUNS)
}

/** Returns the running run, or null. */
export const findRunning = ({ runs }) => (runs[0]?.state === 'running' ? runs[0] : null)

/**
 * Returns the group's state. A run that sends its forwards one by one counts as busy between them, too. A cancelled run
 * does not count as busy, though the ranks still finish its last request.
 */
export function getState(group) {
  const { state, given_up: isGivenUp } = group.status
  if (state === 'busy' && isGivenUp && !findRunning(group)) return 'cancelling'
  return state === 'ready' && findRunning(group) ? 'busy' : state
}

/** Returns the job's progress { at, of }; `of` is null if unknown. Null for a job without steps. */
export function getStep(group) {
  const run = findRunning(group)
  if (group.status.step) return { at: group.status.step[0], of: group.status.step[1] }
  if (run?.total) return { at: run.at, of: run.total }
  return run?.made ? { at: run.made, of: null } : null
}

/** Returns how many percent of its weights the slowest rank has read; null if no rank reports it. */
export function getReadPercent({ memory = [] }) {
  const shares = memory.map(({ read }) => read).filter((read) => read !== undefined)
  return shares.length ? Math.min(...shares) : null
}

/**
 * Lists the running ranks. Memory is in bytes; `placed` is the part of the weights on the device. `silent` is the
 * seconds since the last sign of life if they are too many, else 0. busy (percent), celsius: null if the driver does not
 * tell. index, name: of the rank's device. isSame: whether another rank's device has the same index, as on another
 * machine.
 */
export function listRanks({ status }) {
  const { pids = [], memory = [], beats = [], devices = [], device } = status
  const indexes = devices.map(({ index }) => index)
  return pids.map((pid, rank) => {
    const held = memory[rank] ?? {}
    const { resident = 0, accelerator = 0, total = 0, weights = 0, resident_weights = 0 } = held
    const { busy = null, celsius = null } = held
    const silent = beats[rank] > SILENT_SECONDS ? beats[rank] : 0
    const [used, placed] = device === 'cpu' ? [resident, weights] : [accelerator, resident_weights]
    const { index = null, name = '' } = devices[rank] ?? {}
    const isSame = index === null || indexes.indexOf(index) !== indexes.lastIndexOf(index)
    return { rank, pid, device, index, name, isSame, used, total, weights, placed, silent, busy, celsius }
  })
}

/**
 * Returns which buttons can be used. A failed group can be restarted, not started: only that resets its count of
 * deaths.
 */
export function listActions(group) {
  const state = getState(group)
  return {
    start: state === 'stopped',
    stop: ALIVE.includes(state),
    restart: state !== 'stopped' && state !== 'starting',
    park: ['busy', 'cancelling'].includes(state) || (state === 'ready' && Boolean(group.status.model))
  }
}

/** Returns whether the reason of the last end can be dismissed. A group that is down keeps showing it. */
export const isDismissible = (group) => !['failed', 'restarting'].includes(getState(group))

/** Returns whether the group can be taken out of the list. The first stays. */
export const isRemovable = (group) => group.number !== 1 && getState(group) === 'stopped'

/** Returns whether there are logs to read. A group that never started has none. */
export function hasLogs({ status, runs }) {
  const started = status.pids || status.state === 'starting'
  return Boolean(started || status.deaths || status.last_death || runs.length)
}

/** Returns the badge of the tab's icon: whether any group has failed, or else any is busy. */
export function getBadge({ groups }) {
  const states = groups.map(getState)
  if (states.includes('failed')) return '!'
  return states.some((state) => ['busy', 'cancelling'].includes(state)) ? '•' : ''
}
