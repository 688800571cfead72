// Pure: the panel's model of the worker groups, from the answer of GET /paralleldit/groups and the events that follow.
// Each function returns a new model and leaves the one that it is given.

import * as log from './log.mjs'

export const RUNS = 10 // kept of a group, as the server keeps them
export const SILENT_SECONDS = 3 // without a sign of life, of which a rank gives four a second

const ALIVE = ['starting', 'ready', 'busy', 'cancelling', 'parked', 'restarting']
const STOPPED = { state: 'stopped', deaths: 0, last_death: null, remarks: [] }

/** What a page knows before anything has answered. */
export const empty = () => ({ loaded: false, problem: '', connected: true, device: '', devices: 0, groups: [] })

const group = (number) => ({ number, status: STOPPED, runs: [], logs: {} })

/** After the answer of GET /paralleldit/groups. Logs that were open are to be asked for again. */
export function answered(model, answer) {
  const groups = answer.groups.map(({ group: number, status, runs }) => ({ ...group(number), status, runs }))
  return {
    ...model,
    loaded: true,
    problem: '',
    connected: true,
    device: answer.device,
    devices: answer.devices,
    groups: groups.length ? groups : [group(1)]
  }
}

/** After an event `paralleldit.group`. */
export function told(model, { group: number, status, runs, log: lines }) {
  return changed(model, number, (old) => ({
    ...old,
    status,
    runs: (runs ?? []).reduce(withRun, old.runs),
    logs: withLines(old.logs, lines ?? [])
  }))
}

/** After the log of a rank was opened; its lines are followed from here on. */
export const opened = (model, number, rank) =>
  changed(model, number, (old) => ({ ...old, logs: { ...old.logs, [rank]: log.opened() } }))

/** After GET /paralleldit/logs has answered for a rank, if its log is still open. */
export const read = (model, number, rank, text) =>
  changed(model, number, (old) => {
    if (!old.logs[rank]) return old
    return { ...old, logs: { ...old.logs, [rank]: log.read(old.logs[rank], text) } }
  })

function changed(model, number, change) {
  const old = model.groups.find((each) => each.number === number) ?? group(number)
  const others = model.groups.filter((each) => each.number !== number)
  return { ...model, groups: [...others, change(old)].sort((a, b) => a.number - b.number) }
}

function withRun(runs, run) {
  const others = runs.filter(({ id }) => id !== run.id)
  return [run, ...others].sort((a, b) => b.id - a.id).slice(0, RUNS)
}

function withLines(logs, lines) {
  const open = lines.filter(({ rank }) => logs[rank])
  return { ...logs, ...Object.fromEntries(open.map(({ rank, text }) => [rank, log.told(logs[rank], text)])) }
}

/** The run that goes on, if one does. */
export const runningOf = ({ runs }) => (runs[0]?.state === 'running' ? runs[0] : null)

/**
 * The group's state; a run whose forwards come one by one is one job, also in between. One that was cancelled is none any
 * more, though the ranks are still at what they had begun of it.
 */
export function stateOf(group) {
  const { state, given_up: isGivenUp } = group.status
  if (state === 'busy' && isGivenUp && !runningOf(group)) return 'cancelling'
  return state === 'ready' && runningOf(group) ? 'busy' : state
}

/** How far the job is: { at, of }, `of` null where it is not known; null where the job has no steps. */
export function stepOf(group) {
  const run = runningOf(group)
  if (group.status.step) return { at: group.status.step[0], of: group.status.step[1] }
  if (run?.total) return { at: run.at, of: run.total }
  return run?.made ? { at: run.made, of: null } : null
}

/** How far the slowest rank is with its weights, in percent; null where none tells. */
export function readOf({ memory = [] }) {
  const told = memory.map(({ read }) => read).filter((read) => read !== undefined)
  return told.length ? Math.min(...told) : null
}

/**
 * The ranks that run: memory in bytes, `placed` that of the weights on the device; `silent` the seconds since a sign of
 * life where those are too many, else 0. index, name: of its device; `isSame` where another rank's has the same index,
 * as on another machine.
 */
export function ranksOf({ status }) {
  const { pids = [], memory = [], beats = [], devices = [], device } = status
  const indexes = devices.map(({ index }) => index)
  return pids.map((pid, rank) => {
    const { resident = 0, accelerator = 0, total = 0, weights = 0, resident_weights = 0 } = memory[rank] ?? {}
    const silent = beats[rank] > SILENT_SECONDS ? beats[rank] : 0
    const [used, placed] = device === 'cpu' ? [resident, weights] : [accelerator, resident_weights]
    const { index = null, name = '' } = devices[rank] ?? {}
    const isSame = index === null || indexes.indexOf(index) !== indexes.lastIndexOf(index)
    return { rank, pid, device, index, name, isSame, used, total, weights, placed, silent }
  })
}

/** Which buttons make sense. A group that has failed is restarted, which also forgets how often it died. */
export function actionsOf(group) {
  const state = stateOf(group)
  return {
    start: state === 'stopped',
    stop: ALIVE.includes(state),
    restart: state !== 'stopped' && state !== 'starting',
    park: ['busy', 'cancelling'].includes(state) || (state === 'ready' && Boolean(group.status.model))
  }
}

/** Whether why the group ended the last time is over and done with: one that is down says why. */
export const isDismissible = (group) => !['failed', 'restarting'].includes(stateOf(group))

/** Whether there is a log to ask for: a group that has not started has none. */
export function hasLogs({ status, runs }) {
  const started = status.pids || status.state === 'starting'
  return Boolean(started || status.deaths || status.last_death || runs.length)
}

/** What the tab's icon shows: of all groups, whether one has failed or one works. */
export function badgeOf({ groups }) {
  const states = groups.map(stateOf)
  if (states.includes('failed')) return '!'
  return states.some((state) => ['busy', 'cancelling'].includes(state)) ? '•' : ''
}
